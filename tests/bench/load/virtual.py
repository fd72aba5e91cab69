"""An event loop in virtual time, and a server of the OpenAI API whose every event has a moment of its own."""

import asyncio
import json
import selectors
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import attrs
import httpx
from typing_extensions import override

from lmpool.core.ids import MILLISECOND, SECOND, Nanos

Result = TypeVar("Result")


class _Jumping(selectors.DefaultSelector):
    """Never waits: the loop's time jumps to what is due next."""

    moved_s = 0.0

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if not ready:
            assert timeout is not None, "nothing will ever happen"
            self.moved_s += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    @override
    def time(self) -> float:
        return self._jumping.moved_s


def now() -> Nanos:
    return Nanos(round(asyncio.get_running_loop().time() * SECOND))


def run(main: Callable[[], Awaitable[Result]]) -> Result:
    async def body() -> Result:
        return await main()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(body())


@attrs.frozen
class Script:
    """What is answered to one request: lines of a stream, each so many milliseconds after it was sent."""

    lines: tuple[tuple[float, str], ...]
    status: int = 200


def text_event(text: str, finish: str | None = None, tokens: int | None = None) -> str:
    event: dict[str, Any] = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}
    if tokens is not None:
        event["usage"] = {"prompt_tokens": 50, "completion_tokens": tokens}
    return "data: " + json.dumps(event)


def role_event() -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})


def counts_event(tokens: int, prompt: int = 50, cached: int = 0) -> str:
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    return "data: " + json.dumps(
        {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": tokens, **details}}
    )


DONE = "data: [DONE]"


def answered(first_ms: float, gap_ms: float, tokens: int) -> Script:
    """So many tokens of a character each."""
    moments = [first_ms + gap_ms * number for number in range(tokens)]
    lines = [(at, text_event("x", "length" if number + 1 == tokens else None)) for number, at in enumerate(moments)]
    return Script(((0.0, role_event()), *lines, (moments[-1] + 5, counts_event(tokens)), (moments[-1] + 5, DONE)))


class ScriptedServer(httpx.AsyncBaseTransport):
    """`script`: by the number of the request as it arrives and its body."""

    def __init__(self, script: Callable[[int, dict[str, Any]], Script]) -> None:
        self._script = script
        self.bodies: list[dict[str, Any]] = []
        self.arrived_ns: list[Nanos] = []
        self.under_way = self.most_under_way = 0

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(await request.aread())
        self.bodies.append(body)
        self.arrived_ns.append(now())
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        script = self._script(len(self.bodies) - 1, body)
        return httpx.Response(script.status, stream=_Lines(script, now(), self._leave))

    def _leave(self) -> None:
        self.under_way -= 1

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self, base_url="http://scripted", timeout=None)


class _Lines(httpx.AsyncByteStream):
    def __init__(self, script: Script, begun_ns: Nanos, leave: Callable[[], None]) -> None:
        self._script = script
        self._begun_ns = begun_ns
        self._leave = leave

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for at_ms, line in self._script.lines:
            await asyncio.sleep((self._begun_ns + at_ms * MILLISECOND - now()) / SECOND)
            yield f"{line}\n\n".encode()

    @override
    async def aclose(self) -> None:
        self._leave()
