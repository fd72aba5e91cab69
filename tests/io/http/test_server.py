"""Real sockets: clients that leave in every state, draining, and what is no HTTP."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from lmpool.io.http.app import Application
from lmpool.io.http.server import serve
from tests.io.http.scripted import ScriptedService, application, events_of
from tests.io.http.sockets import listening, serving, url_of

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
HANDLERS = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
"""Before any server: whoever starts the tests in the background has them ignore SIGINT."""


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService(words=["a"] * 9, hangs_at=5)


@pytest.fixture
def app(tmp_path: Path, service: ScriptedService) -> Application:
    return application(tmp_path, service)


@pytest.fixture
async def url(app: Application) -> AsyncIterator[str]:
    async with serving(app) as url:
        yield url


class Connection:
    """A client that writes bytes and closes when it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, content: dict[str, Any], *, announced: int = 0) -> None:
        """`announced`: bytes of the body that are promised and do not come."""
        body = orjson.dumps(content)
        length = len(body) + announced
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        self.writer.write(head.encode() + body)
        await self.writer.drain()

    async def answer(self) -> tuple[bytes, Any]:
        """Head and document of a whole answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        return head, orjson.loads(await self.reader.readexactly(length))

    async def leave(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def connect(url: str) -> Connection:
    host, port = url.removeprefix("http://").split(":")
    return Connection(*await asyncio.open_connection(host, int(port)))


def question(*, stream: bool) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], "stream": stream}


async def ended(client: httpx.AsyncClient, outcome: str) -> float:
    text = (await client.get("/metrics")).text
    name = f'lmpool_requests_ended_total{{endpoint="{CHAT}",outcome="{outcome}"}} '
    return next((float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name)), 0.0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hangs_at", [0, 5])
async def test_b16_b17_a_client_that_leaves_ends_its_request(
    url: str, service: ScriptedService, stream: bool, hangs_at: int
) -> None:
    service.hangs_at = hangs_at
    connection = await connect(url)
    await connection.ask(question(stream=stream))
    await service.hanging.wait()
    await connection.leave()
    await service.idle.wait()
    assert service.running == 0
    async with httpx.AsyncClient(base_url=url) as client:
        assert await ended(client, "cancelled") == 1


async def test_b16_fifty_clients_that_leave(url: str, service: ScriptedService) -> None:
    for _ in range(50):
        service.hanging.clear()
        connection = await connect(url)
        await connection.ask(question(stream=True))
        await service.hanging.wait()
        await connection.leave()
        await service.idle.wait()
    assert service.running == 0
    assert len(service.requests) == 50


async def test_b17_a_client_may_leave_before_its_body_is_complete(url: str, service: ScriptedService) -> None:
    connection = await connect(url)
    await connection.ask(question(stream=False), announced=10)
    await connection.leave()
    async with httpx.AsyncClient(base_url=url) as client:
        while await ended(client, "cancelled") == 0:
            pass
    assert service.requests == []


async def test_b14_all_prompts_of_a_client_that_leaves_end(url: str, service: ScriptedService) -> None:
    async with httpx.AsyncClient(base_url=url) as client:
        content = {"prompt": ["a", "b", "c"], "n": 2, "stream": True}
        async with client.stream("POST", "/v1/completions", json=content) as response:
            assert response.status_code == 200
            await service.hanging.wait()
    await service.idle.wait()
    assert len(service.requests) == 3


async def test_b22_two_requests_may_have_the_same_label(url: str, service: ScriptedService) -> None:
    service.hangs_at = None
    async with httpx.AsyncClient(base_url=url, headers={"x-request-id": "same"}) as client:
        answers = await asyncio.gather(*[client.post(CHAT, json=question(stream=False)) for _ in range(2)])
    assert [answer.headers["x-request-id"] for answer in answers] == ["same"] * 2
    assert len({answer.headers["x-lmpool-request"] for answer in answers}) == 2


async def test_b22_a_header_of_a_megabyte_is_refused_and_others_go_on(url: str, service: ScriptedService) -> None:
    service.hangs_at = None
    for size in (20_000, 1_000_000):
        connection = await connect(url)
        connection.writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + b"r" * size)
        try:
            answer = await connection.reader.read()
        except ConnectionResetError:
            answer = b""
        if size == 20_000:
            assert answer.startswith(b"HTTP/1.1 400")
            assert orjson.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"
        connection.writer.close()
    async with httpx.AsyncClient(base_url=url) as client:
        assert (await client.post(CHAT, json=question(stream=False))).status_code == 200


async def test_b37_more_than_the_door_holds_are_refused_at_once(tmp_path: Path) -> None:
    service = ScriptedService(hangs_at=0)
    async with (
        serving(application(tmp_path, service, requests_max=10)) as url,
        httpx.AsyncClient(base_url=url, limits=httpx.Limits(max_connections=None), timeout=None) as client,
    ):
        asking = [asyncio.create_task(client.post(CHAT, json=question(stream=False))) for _ in range(50)]
        refused: list[httpx.Response] = []
        for finished in asyncio.as_completed(asking):
            refused.append(await finished)
            if len(refused) == 40:
                break
        assert {response.status_code for response in refused} == {429}
        assert {response.headers["retry-after"] for response in refused} == {"1"}
        assert service.running == 10
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await service.idle.wait()
        service.hangs_at = None
        assert (await client.post(CHAT, json=question(stream=False))).status_code == 200


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmpool.io.http.patience.PATIENCE_S", 0.2)
    monkeypatch.setattr("lmpool.io.http.server.LOOK_S", 0.02)


@pytest.mark.parametrize("stream", [False, True])
async def test_who_does_not_read_its_answer_loses_its_connection_and_its_place(
    tmp_path: Path, impatient: None, stream: bool
) -> None:
    service = ScriptedService(words=["word " * 20_000] * 100)
    async with serving(application(tmp_path, service, requests_max=1)) as url:
        connection = await connect(url)
        await connection.ask(question(stream=stream))
        async with httpx.AsyncClient(base_url=url) as client:
            while not (service.requests and service.running == 0):  # a whole answer waits behind its end
                await client.get("/livez")
            while (answer := await client.post(CHAT, json=question(stream=False))).status_code == 429:
                pass
            assert answer.status_code == 200
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await connection.reader.readexactly(1 << 30)
        connection.writer.close()


async def test_who_does_not_finish_its_question_loses_its_connection(tmp_path: Path, impatient: None) -> None:
    async with serving(application(tmp_path, ScriptedService())) as url:
        silent, half = await connect(url), await connect(url)
        half.writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Half: ")
        for connection in (silent, half):
            with suppress(ConnectionResetError):
                assert await connection.reader.read() == b""
            connection.writer.close()


async def test_a_body_that_does_not_come_is_refused_and_frees_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmpool.io.http.connection.BODY_S", 0.05)
    async with serving(application(tmp_path, ScriptedService(), requests_max=1)) as url:
        connection = await connect(url)
        await connection.ask(question(stream=False), announced=10)
        head, document = await connection.answer()
        assert head.startswith(b"HTTP/1.1 408")
        assert document["error"]["code"] == "body_too_slow"
        connection.writer.close()
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.post(CHAT, json=question(stream=False))).status_code == 200


async def test_more_connections_than_a_server_may_have_are_refused_and_the_others_served(tmp_path: Path) -> None:
    async with serving(application(tmp_path, ScriptedService()), connections_max=4) as url:
        inside = [await connect(url) for _ in range(4)]
        for connection in inside:
            await connection.ask(question(stream=False))
            await connection.answer()
        for _ in range(3):
            refused = await connect(url)
            head, document = await refused.answer()
            assert head.startswith(b"HTTP/1.1 429")
            assert b"retry-after: 1" in head
            assert document["error"]["code"] == "server_busy"
            assert await refused.reader.read() == b""
            refused.writer.close()
        await inside[0].leave()
        await inside[1].ask(question(stream=False))
        assert (await inside[1].answer())[0].startswith(b"HTTP/1.1 200")
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.post(CHAT, json=question(stream=False))).status_code == 200
        for connection in inside[1:]:
            connection.writer.close()


async def test_b63_running_streams_finish_while_new_requests_are_refused(
    app: Application, service: ScriptedService
) -> None:
    service.hangs_at = None
    release = asyncio.Event()
    service.gate = release
    listener, stop = listening(), asyncio.Event()
    url = url_of(listener)
    server = asyncio.create_task(serve(app, listener, stop, drain_s=60, connections_max=100))
    async with httpx.AsyncClient(base_url=url) as client:
        running = asyncio.create_task(client.post(CHAT, json=question(stream=True)))
        await service.hanging.wait()
        stop.set()
        while (await client.get("/readyz")).status_code == 200:
            pass
        refused = await client.post(CHAT, json=question(stream=True))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert (await client.get("/livez")).status_code == 200
        release.set()
        assert events_of((await running).text)[-1] == "[DONE]"
    await server


@pytest.mark.parametrize("stream", [False, True])
async def test_b63_what_does_not_finish_in_time_ends_with_an_error(
    app: Application, service: ScriptedService, stream: bool
) -> None:
    listener, stop = listening(), asyncio.Event()
    url = url_of(listener)
    server = asyncio.create_task(serve(app, listener, stop, drain_s=0, connections_max=100))
    async with httpx.AsyncClient(base_url=url) as client:
        running = asyncio.create_task(client.post(CHAT, json=question(stream=stream)))
        await service.hanging.wait()
        stop.set()
        answer = await running
    if stream:
        assert events_of(answer.text)[-1]["error"]["code"] == "draining"
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
    await server
    assert service.running == 0


async def test_b63_signal_handlers_are_the_hosts(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/livez")).status_code == 200
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == HANDLERS


async def test_b64_probes_answer_in_a_burst(tmp_path: Path) -> None:
    service = ScriptedService(hangs_at=0)
    async with (
        serving(application(tmp_path, service, requests_max=200)) as url,
        httpx.AsyncClient(base_url=url, limits=httpx.Limits(max_connections=None), timeout=None) as client,
    ):
        asking = [asyncio.create_task(client.post(CHAT, json=question(stream=True))) for _ in range(200)]
        await service.hanging.wait()
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
