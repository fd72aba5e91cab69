"""Probes, models, tokens, metrics, the document of the API, the pool from inside, keys, and what is nowhere."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from lmpool.core.limits import DECISIONS_KEPT
from lmpool.io.http.app import Application
from lmpool.io.http.keys import Client, Keys
from lmpool.io.http.schema import TOKENIZED_CHARACTERS_MAX
from tests.io.http.scripted import ScriptedService, application, client_of
from tests.model_folder import IM_END, IM_START, tiny_vocabulary
from tests.specs.tables import read_rows

pytestmark = pytest.mark.anyio

KEYS = Keys({b"sk-1": Client("red", is_admin=False), b"sk-2": Client("blue", is_admin=True)})


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService()


@pytest.fixture
def app(tmp_path: Path, service: ScriptedService) -> Application:
    return application(tmp_path, service)


@pytest.fixture
async def client(app: Application) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as client:
        yield client


@pytest.fixture
async def locked(tmp_path: Path, service: ScriptedService) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server with keys."""
    async with client_of(application(tmp_path / "locked", service, keys=KEYS)) as client:
        yield client


async def test_b64_liveness_and_readiness_are_two_questions(
    client: httpx.AsyncClient, service: ScriptedService, app: Application
) -> None:
    assert (await client.get("/readyz")).status_code == 200
    service.is_ready = False
    loading = await client.get("/readyz")
    assert (loading.status_code, loading.json()["error"]["code"]) == (503, "not_ready")
    assert "retry-after" in loading.headers
    assert (await client.get("/livez")).status_code == 200
    service.is_ready = True
    await app.door.drain(0)
    draining = await client.get("/readyz")
    assert (draining.status_code, draining.json()["error"]["code"]) == (503, "draining")
    assert (await client.get("/livez")).status_code == 200
    assert "lmpool_ready 0.0" in (await client.get("/metrics")).text


async def test_b33_models_show_the_limit_in_force(client: httpx.AsyncClient, service: ScriptedService) -> None:
    service.tokens_max = 320
    document = (await client.get("/v1/models")).json()
    assert document["object"] == "list"
    assert [model["id"] for model in document["data"]] == ["tiny", "/models/tiny"]
    assert {model["max_model_len"] for model in document["data"]} == {320}


async def test_texts_are_tokenized_and_back(client: httpx.AsyncClient) -> None:
    text = "hello world 🦊"
    document = (await client.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
    assert document["count"] == len(document["tokens"]) == len(document["token_strs"])
    assert document["token_strs"][0] == "hello"
    assert document["max_model_len"] == 4096
    assert (await client.post("/detokenize", json={"tokens": document["tokens"]})).json() == {"prompt": text}
    assert (await client.post("/tokenize", json={"prompt": ""})).json()["tokens"] == []


async def test_a_text_that_takes_too_long_to_tokenize_is_refused_in_both_forms(tmp_path: Path) -> None:
    text = "a" * (TOKENIZED_CHARACTERS_MAX + 1)
    async with client_of(application(tmp_path, ScriptedService(), body_bytes_max=2 * len(text))) as client:
        for field, value in (("prompt", text), ("messages", [{"role": "user", "content": text}])):
            error = (await client.post("/tokenize", json={field: value})).json()["error"]
            assert (error["code"], error["param"]) == ("invalid_value", field)
            assert f"at most {TOKENIZED_CHARACTERS_MAX} characters, not {len(text)}" in error["message"]


async def test_chats_are_tokenized_as_they_would_be_asked(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tokens = (await client.post("/tokenize", json={"messages": messages})).json()["tokens"]
    shown = (await client.post("/detokenize", json={"tokens": tokens})).json()["prompt"]
    assert shown == f"{IM_START}user\nhi{IM_END}\n{IM_START}assistant\n"
    content = {"messages": messages, "add_generation_prompt": False}
    tokens = (await client.post("/tokenize", json=content)).json()["tokens"]
    assert tokens[-2:] == [tiny_vocabulary()[IM_END], ord("\n")]


@pytest.mark.parametrize(
    ("path", "content", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 7}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "messages"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [100_000]}, "tokens[0]"),
    ],
)
async def test_b10_tokens_are_checked(client: httpx.AsyncClient, path: str, content: object, param: str) -> None:
    response = await client.post(path, json=content)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == param


async def test_b80_tokenize_without_a_template(tmp_path: Path) -> None:
    async with client_of(application(tmp_path, ScriptedService(), template=None)) as client:
        response = await client.post("/tokenize", json={"messages": [{"role": "user", "content": "a"}]})
        assert response.json()["error"]["code"] == "no_chat_template"


async def test_a_template_that_refuses_is_a_bad_request(tmp_path: Path) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    async with client_of(application(tmp_path, ScriptedService(), template=template)) as client:
        response = await client.post("/tokenize", json={"messages": [{"role": "user", "content": "a"}]})
        assert response.status_code == 400
        assert "roles must alternate" in response.json()["error"]["message"]


async def test_every_endpoint_of_the_specification_is_there(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    for row in read_rows("api.md", "Endpoints"):
        assert row["method"].lower() in document["paths"][row["path"]]
        other = "GET" if row["method"] == "POST" else "POST"
        response = await client.request(other, row["path"].replace("{name}", "tiny"))
        assert response.status_code == 405
        assert response.json()["error"]["code"] == "method_not_allowed"
        assert row["method"] in response.headers["allow"]
        assert response.headers["x-request-id"]


async def test_keys_are_needed_where_the_specification_says_so(locked: httpx.AsyncClient) -> None:
    for row in read_rows("api.md", "Endpoints"):
        path = row["path"].replace("{name}", "tiny")
        response = await locked.request(row["method"], path, json={} if row["method"] == "POST" else None)
        assert (response.status_code == 401) == (row["key"] != "none"), path
        if row["key"] != "none":
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("header", ["Bearer sk-9", "Bearer", "sk-1", "Basic sk-1", "Bearer sk-1 x"])
async def test_wrong_keys_are_refused_and_never_shown(locked: httpx.AsyncClient, header: str) -> None:
    response = await locked.get("/v1/models", headers={"authorization": header})
    assert response.status_code == 401
    assert "sk-" not in response.text


async def test_a_key_opens(locked: httpx.AsyncClient) -> None:
    assert (await locked.get("/v1/models", headers={"authorization": "bearer sk-1"})).status_code == 200


async def test_only_an_admin_clears_the_pool(client: httpx.AsyncClient, locked: httpx.AsyncClient) -> None:
    open_server = await client.post("/pool/clear")
    assert (open_server.status_code, open_server.json()["error"]["code"]) == (403, "admin_key_required")
    assert "--api-key-file" in open_server.json()["error"]["message"]
    assert (await locked.post("/pool/clear", headers={"authorization": "Bearer sk-1"})).status_code == 403
    cleared = await locked.post("/pool/clear", headers={"authorization": "Bearer sk-2"})
    assert cleared.json() == {"blocks": 42}


async def test_the_state_of_the_pool(client: httpx.AsyncClient) -> None:
    document = (await client.get("/pool/state")).json()
    assert document["policy"] == "marginal-time"
    (replica,) = document["replicas"]
    assert (replica["rank"], replica["membership"], replica["blocks"]) == (0, "live", 100)


async def test_decisions_show_every_term(client: httpx.AsyncClient) -> None:
    decisions = (await client.get("/pool/decisions", params={"limit": 2})).json()["decisions"]
    assert len(decisions) == 2
    assert decisions[0]["request"] == "1-5"
    assert decisions[0]["candidates"][0]["terms"] == {"own": 1.5, "followers": 2.5}


async def test_decisions_come_with_what_became_of_their_requests(
    client: httpx.AsyncClient, service: ScriptedService
) -> None:
    document = (await client.get("/pool/decisions", params={"request": "cmpl-3"})).json()
    assert service.explain_asked == [("cmpl-3", None, 20)]
    assert document["kept"] == DECISIONS_KEPT
    (history,) = document["requests"]
    assert (history["request"], history["outcome"]) == ("1-5", "complete")
    assert history["visits"][0]["cached_tokens"] == 48


async def test_a_key_sees_its_own_tenant_and_an_admin_all(locked: httpx.AsyncClient, service: ScriptedService) -> None:
    for key in ("sk-1", "sk-2"):
        response = await locked.get("/pool/decisions", headers={"authorization": f"Bearer {key}"})
        assert response.status_code == 200
    assert [tenant for _, tenant, _ in service.explain_asked] == ["red", None]


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=99999", "request=", "request=%0a", "request=%C3%A9"])
async def test_queries_are_checked(client: httpx.AsyncClient, query: str) -> None:
    response = await client.get(f"/pool/decisions?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == query.partition("=")[0]


async def test_what_is_nowhere_has_the_one_shape(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/engines")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
    assert (await client.get("/livez/")).status_code == 404


async def test_bodies_are_bounded_and_json(tmp_path: Path) -> None:
    async with client_of(application(tmp_path, ScriptedService(), body_bytes_max=50)) as client:
        for path in ("/v1/completions", "/tokenize"):
            response = await client.post(path, json={"prompt": "a" * 100})
            assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")
            response = await client.post(path, content=b"{", headers={"content-type": "application/json"})
            assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")
            response = await client.post(path, data={"prompt": "a"})
            assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")
