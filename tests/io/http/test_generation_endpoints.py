"""Completions and chat over a scripted pool: whole answers, streams, and what the pool is asked for."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lmpool.core.ids import SECOND, Nanos
from lmpool.io.errors import BadRequest, Busy, DeadlinePassed, Draining, GenerationFailed, LMPoolError, NoReplica
from lmpool.io.generation import Chat
from lmpool.io.http.app import Application
from lmpool.io.http.keys import Client, Keys
from tests.io.http.scripted import ScriptedService, application, client_of, events_of

pytestmark = pytest.mark.anyio

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 4},
}


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


async def post(client: httpx.AsyncClient, path: str, **content: Any) -> httpx.Response:
    default = {"prompt": "hi"} if path == COMPLETIONS else {"messages": MESSAGES}
    return await client.post(path, json=default | content)


async def test_a_completion_is_whole(client: httpx.AsyncClient) -> None:
    response = await post(client, COMPLETIONS)
    document = response.json()
    assert document.pop("id").startswith("cmpl-")
    assert document.pop("created") > 1_700_000_000
    assert document == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [{"index": 0, "text": "Hello world", "logprobs": None, "finish_reason": "stop"}],
        "usage": USAGE,
    }
    assert response.headers["x-lmpool-request"] == "1-1"


async def test_a_chat_is_whole(client: httpx.AsyncClient) -> None:
    document = (await post(client, CHAT, model="/models/tiny")).json()
    assert document["id"].startswith("chatcmpl-")
    assert document["object"] == "chat.completion"
    assert document["model"] == "/models/tiny"
    message = {"role": "assistant", "content": "Hello world", "refusal": None}
    assert document["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    assert document["usage"] == USAGE


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(("options", "counted"), [(None, 0), ({}, 0), ({"include_usage": True}, 1)])
async def test_b01_counts_come_once_and_only_if_wanted(
    client: httpx.AsyncClient, path: str, options: dict[str, bool] | None, counted: int
) -> None:
    body = (await post(client, path, stream=True, stream_options=options)).text
    *events, done = events_of(body)
    assert done == "[DONE]"
    with_counts = [event for event in events if event.get("usage")]
    assert [event["usage"] for event in with_counts] == [USAGE] * counted
    if counted:
        assert events[-1]["choices"] == []
        assert all(event["usage"] is None for event in events[:-1])
    else:
        assert not any("usage" in event for event in events)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_counts_so_far_are_in_every_event_if_wanted(client: httpx.AsyncClient, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *events, done = events_of((await post(client, path, stream=True, stream_options=options)).text)
    assert done == "[DONE]"
    counted = [event["usage"]["completion_tokens"] for event in events]
    assert counted == sorted(counted)
    assert events[-1]["usage"] == USAGE
    assert events[-1]["choices"] == []
    # no event counts tokens of a later one
    assert counted[0] < counted[-1]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_counts_of_every_event_come_only_with_those_of_the_last(client: httpx.AsyncClient, path: str) -> None:
    body = (await post(client, path, stream=True, stream_options={"continuous_usage_stats": True})).text
    assert not any("usage" in event for event in events_of(body)[:-1])


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_b08_one_reason_a_choice_on_its_last_event(client: httpx.AsyncClient, path: str) -> None:
    *events, _ = events_of((await post(client, path, stream=True, n=2)).text)
    for index in (0, 1):
        reasons = [
            choice["finish_reason"] for event in events for choice in event["choices"] if choice["index"] == index
        ]
        assert reasons[-1] == "stop"
        assert set(reasons[:-1]) == {None}


async def test_a_stream_joined_is_the_whole(client: httpx.AsyncClient) -> None:
    response = await post(client, CHAT, stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["x-lmpool-request"] == "1-1"
    *events, _ = events_of(response.text)
    assert len({event["id"] for event in events}) == 1
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello world"
    assert deltas[-1] == {}


@pytest.mark.parametrize("best", [0, 2])
async def test_b05_log_probabilities_of_both_endpoints_and_modes(client: httpx.AsyncClient, best: int) -> None:
    whole = (await post(client, COMPLETIONS, logprobs=best)).json()["choices"][0]["logprobs"]
    assert whole["tokens"] == ["Hello", " ", "world"]
    assert whole["text_offset"] == [0, 5, 6]
    assert [len(entry) for entry in whole["top_logprobs"]] == [best + 1] * 3
    *events, _ = events_of((await post(client, COMPLETIONS, logprobs=best, stream=True)).text)
    parts = [event["choices"][0]["logprobs"] for event in events]
    assert {name: [item for part in parts for item in part[name]] for name in whole} == whole
    chat = (await post(client, CHAT, logprobs=True, top_logprobs=best)).json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in chat] == ["Hello", " ", "world"]
    assert [len(entry["top_logprobs"]) for entry in chat] == [best] * 3
    *events, _ = events_of((await post(client, CHAT, logprobs=True, top_logprobs=best, stream=True)).text)
    parts = [event["choices"][0]["logprobs"] for event in events]
    assert [entry for part in parts if part for entry in part["content"]] == chat


async def test_b14_several_choices_have_their_own_index(client: httpx.AsyncClient) -> None:
    document = (await post(client, COMPLETIONS, n=3)).json()
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2]
    assert document["usage"]["prompt_tokens"] == 7
    assert document["usage"]["completion_tokens"] == 9


@pytest.mark.parametrize("prompts", [["a", "b"], [[1, 2], [3]], ["a", [1]]])
async def test_several_prompts_are_several_requests(
    client: httpx.AsyncClient, service: ScriptedService, prompts: list[Any]
) -> None:
    response = await post(client, COMPLETIONS, prompt=prompts, n=2)
    document = response.json()
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2, 3]
    assert document["usage"]["prompt_tokens"] == 14
    assert response.headers["x-lmpool-request"] == "1-1,1-2"
    asked = [tuple(prompt) if isinstance(prompt, list) else prompt for prompt in prompts]
    assert [request.prompt for request in service.requests] == asked
    *events, _ = events_of((await post(client, COMPLETIONS, prompt=prompts, n=2, stream=True)).text)
    texts = ["", "", "", ""]
    for event in events:
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == ["Hello world"] * 4


@pytest.mark.parametrize(
    ("prompt", "answers", "param", "words"),
    [("a", 101, "n", "asks for 101 (n)"), (["a", "b", "c"], 34, "prompt", "34 (n) to each of 3 prompts")],
)
async def test_more_answers_than_there_are_places_for_are_no_reason_to_come_again(
    client: httpx.AsyncClient, service: ScriptedService, prompt: Any, answers: int, param: str, words: str
) -> None:
    response = await post(client, COMPLETIONS, prompt=prompt, n=answers)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_value", param)
    assert words in error["message"]
    assert "at most 100 answers" in error["message"]
    assert "retry-after" not in response.headers
    assert service.requests == []


async def test_b07_editors_and_agents_are_understood(client: httpx.AsyncClient, service: ScriptedService) -> None:
    response = await post(
        client,
        CHAT,
        messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}, *MESSAGES],
        max_completion_tokens=5,
        max_tokens=9,
        store=True,
        metadata={},
        tools=None,
        stop=None,
        made_up=1,
    )
    assert response.status_code == 200
    (request,) = service.requests
    assert request.sampling.max_tokens == 5
    assert isinstance(request.prompt, Chat)
    assert request.prompt.messages[1] == {"role": "assistant", "content": ""}
    assert "lmpool_fields_ignored_total 1.0" in (await client.get("/metrics")).text


async def test_every_sampling_field_reaches_the_pool(client: httpx.AsyncClient, service: ScriptedService) -> None:
    await post(
        client,
        COMPLETIONS,
        n=2,
        temperature=0,
        top_p=0.5,
        top_k=-1,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        logit_bias={"7": -5, "3": 2.5},
        seed=11,
        max_tokens=12,
        min_tokens=3,
        stop=["a", "b"],
        include_stop_str_in_output=True,
        stop_token_ids=[5],
        ignore_eos=True,
        logprobs=1,
        echo=True,
        cache_salt="s",
    )
    (request,) = service.requests
    sampling = request.sampling
    assert (sampling.choices, sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (
        2,
        0,
        0.5,
        0,
        0.1,
    )
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1, -1, 1.1)
    assert (sampling.logit_bias, sampling.seed) == (((3, 2.5), (7, -5.0)), 11)
    assert (sampling.max_tokens, sampling.min_tokens, sampling.stop) == (12, 3, ("a", "b"))
    assert (sampling.includes_stop, sampling.stop_token_ids, sampling.ignores_eos) == (True, (5,), True)
    assert (sampling.logprobs, sampling.echo, request.cache_salt) == (1, True, "s")


async def test_limits_by_default_are_those_of_the_api(client: httpx.AsyncClient, service: ScriptedService) -> None:
    await post(client, COMPLETIONS)
    await post(client, COMPLETIONS, min_tokens=20)
    await post(client, CHAT)
    assert [request.sampling.max_tokens for request in service.requests] == [16, 20, None]


async def test_headers_reach_the_pool(client: httpx.AsyncClient, service: ScriptedService) -> None:
    headers = {"x-request-id": "r-1", "x-session-id": "s-1", "x-priority": "-3", "x-deadline-ms": "1500"}
    response = await client.post(COMPLETIONS, json={"prompt": "a"}, headers=headers)
    (request,) = service.requests
    assert (request.label, request.session, request.priority, request.deadline_s) == ("r-1", "s-1", -3, 1.5)
    assert request.arrived_ns is not None
    assert request.tenant == "default"
    assert response.headers["x-request-id"] == "r-1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-priority", "9"),
        ("x-priority", "1.0"),
        ("x-priority", "--1"),
        ("x-deadline-ms", "0"),
        ("x-deadline-ms", "soon"),
        ("x-session-id", "s" * 257),
        ("x-request-id", "r" * 257),
    ],
)
async def test_b22_headers_are_bounded(client: httpx.AsyncClient, name: str, value: str) -> None:
    response = await client.post(COMPLETIONS, json={"prompt": "a"}, headers={name: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name
    assert response.headers["x-request-id"].startswith("req-")


async def test_the_tenant_is_the_keys(tmp_path: Path) -> None:
    service = ScriptedService()
    app = application(tmp_path, service, keys=Keys({b"sk-1": Client("red", is_admin=False)}))
    async with client_of(app) as client:
        assert (await post(client, COMPLETIONS)).status_code == 401
        response = await client.post(COMPLETIONS, json={"prompt": "a"}, headers={"authorization": "Bearer sk-1"})
    assert response.status_code == 200
    assert service.requests[0].tenant == "red"


@pytest.mark.parametrize(
    ("path", "content", "param"),
    [
        (COMPLETIONS, {"prompt": None}, "prompt"),
        (COMPLETIONS, {"prompt": ""}, "prompt"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": [[]]}, "prompt[0]"),
        (COMPLETIONS, {"prompt": ["a", ""]}, "prompt[1]"),
        (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": -1}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": 2, "min_tokens": 3}, "min_tokens"),
        (COMPLETIONS, {"logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"logprobs": True}, "logprobs"),
        (COMPLETIONS, {"suffix": "x"}, "suffix"),
        (COMPLETIONS, {"best_of": 2}, "best_of"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"max_tokens": 0}, "max_tokens"),
        (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"logprobs": 2}, "logprobs"),
        (CHAT, {"tools": [{}]}, "tools"),
        (CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {"model": "Tiny"}, "model"),
        (CHAT, {"model": 7}, "model"),
        (CHAT, {"temperature": "hot"}, "temperature"),
        (CHAT, {"logit_bias": {"999999": 1}}, "logit_bias['999999']"),
        (CHAT, {"stop": ["x"] * 10_000}, "stop"),
        (CHAT, {"n": 0}, "n"),
    ],
)
async def test_b10_b32_what_is_wrong_never_reaches_the_pool(
    client: httpx.AsyncClient, service: ScriptedService, path: str, content: dict[str, Any], param: str
) -> None:
    for stream in (False, True):
        response = await post(client, path, stream=stream, **content)
        assert response.status_code == (404 if content.get("model") == "Tiny" else 400)
        error = response.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["param"] == param
        assert error["type"] == "invalid_request_error"
    assert service.requests == []
    assert (await post(client, path)).status_code == 200


async def test_b32_nothing_may_be_generated_with_echo(client: httpx.AsyncClient, service: ScriptedService) -> None:
    assert (await post(client, COMPLETIONS, max_tokens=0, echo=True, logprobs=0)).status_code == 200
    assert service.requests[0].sampling.max_tokens == 0


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (BadRequest("128 tokens are the limit", "prompt", "context_length_exceeded"), 400, "context_length_exceeded"),
        (DeadlinePassed("late"), 408, "deadline_exceeded"),
        (Busy("busy", 2.2), 429, "server_busy"),
        (GenerationFailed("not finite"), 500, "generation_failed"),
        (NoReplica("none"), 503, "no_replica"),
        (Draining("ending"), 503, "draining"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_b09_errors_of_the_pool_have_the_one_shape(
    client: httpx.AsyncClient, service: ScriptedService, error: LMPoolError, status: int, code: str, stream: bool
) -> None:
    service.error = error
    response = await post(client, COMPLETIONS, stream=stream)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert response.json()["error"]["message"] == str(error)
    assert (response.headers.get("retry-after") is not None) == (status in (429, 503))
    if status == 429:
        assert response.headers["retry-after"] == "3"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_b09_an_error_in_mid_stream_is_a_whole_event_and_the_last(
    client: httpx.AsyncClient, service: ScriptedService, path: str
) -> None:
    service.words, service.error, service.error_at = ["a"] * 9, GenerationFailed("the replica is gone"), 5
    events = events_of((await post(client, path, stream=True)).text)
    assert events[-1] == {
        "error": {
            "message": "the replica is gone",
            "type": "server_error",
            "param": None,
            "code": "generation_failed",
        }
    }
    assert len(events) == (6 if path == COMPLETIONS else 7)
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])


async def test_b13_model_names_are_the_same_everywhere(client: httpx.AsyncClient) -> None:
    for name in ("tiny", "/models/tiny"):
        for path in (COMPLETIONS, CHAT):
            assert (await post(client, path, model=name)).json()["model"] == name
        assert (await client.get(f"/v1/models/{name}")).json()["id"] == name
    assert (await post(client, CHAT, model=None)).json()["model"] == "tiny"
    response = await post(client, CHAT, model="Tiny")
    assert response.json()["error"]["code"] == "model_not_found"
    assert "tiny, /models/tiny" in response.json()["error"]["message"]
    assert (await client.get("/v1/models/Tiny")).json()["error"]["code"] == "model_not_found"


async def test_b80_a_model_without_a_template_says_what_is_missing(tmp_path: Path) -> None:
    async with client_of(application(tmp_path, ScriptedService(), template=None)) as client:
        response = await post(client, CHAT)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "no_chat_template"
        assert "chat_template.jinja" in response.json()["error"]["message"]
        assert "/v1/completions" in response.json()["error"]["message"]
        assert (await post(client, COMPLETIONS)).status_code == 200


async def test_b64_nothing_is_generated_while_loading(tmp_path: Path) -> None:
    service = ScriptedService(has_joined=False)
    moments = itertools.count(0, 10 * SECOND)
    async with client_of(application(tmp_path, service, now=lambda: Nanos(next(moments)))) as client:
        response = await post(client, COMPLETIONS)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "not_ready"
    assert int(response.headers["retry-after"]) >= 1
    assert service.requests == []


async def test_b64_a_server_started_again_lets_requests_wait_for_its_links(
    client: httpx.AsyncClient, service: ScriptedService
) -> None:
    service.has_joined = False
    assert (await post(client, COMPLETIONS)).status_code == 200


async def test_the_log_names_requests_by_their_label_and_tells_nothing_of_them(
    client: httpx.AsyncClient, service: ScriptedService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="lmpool")
    service.error = GenerationFailed("not finite")
    headers = {"x-request-id": "r-1", "authorization": "Bearer sk-secret"}
    await client.post(COMPLETIONS, json={"prompt": "private words"}, headers=headers)
    records = [record for record in caplog.records if record.name == "lmpool.http"]
    assert [record.getMessage() for record in records] == ["request failed", "request ended"]
    assert all(record.__dict__["label"] == "r-1" for record in records)
    assert not any(word in str(record.__dict__) for record in records for word in ("secret", "private"))


async def test_b67_b70_metrics_close(client: httpx.AsyncClient, service: ScriptedService) -> None:
    for _ in range(3):
        await post(client, CHAT)
    await post(client, CHAT, n=0)
    service.finish = "length"
    await post(client, CHAT)
    service.error = GenerationFailed("x")
    await post(client, CHAT)
    text = (await client.get("/metrics")).text
    assert f'lmpool_requests_started_total{{endpoint="{CHAT}"}} 6.0' in text
    for outcome, expected in (("stop", 3), ("length", 1), ("refused", 1), ("error", 1)):
        assert f'lmpool_requests_ended_total{{endpoint="{CHAT}",outcome="{outcome}"}} {expected}.0' in text
    assert f'lmpool_requests_running{{endpoint="{CHAT}"}} 0.0' in text
    assert f'lmpool_first_token_seconds_count{{endpoint="{CHAT}"}} 4.0' in text
    assert f'lmpool_queue_seconds_count{{endpoint="{CHAT}"}} 4.0' in text
