"""Bodies, doors, and clients that leave, on scripted ASGI channels."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.datastructures import Headers
from starlette.types import Message

from lmpool.io.http.connection import Attendance, ClientLeftError, attend, read_body, read_object
from lmpool.io.http.door import Door
from lmpool.io.http.errors import ApiError, Code
from lmpool.io.http.interleave import interleave
from lmpool.io.http.keys import ANYBODY, Client

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Channel:
    """What a server would give to `receive`: the messages put in, then silence."""

    def __init__(self, *messages: Message) -> None:
        self.queue: asyncio.Queue[Message] = asyncio.Queue()
        for message in messages:
            self.queue.put_nowait(message)

    async def receive(self) -> Message:
        return await self.queue.get()

    def leave(self) -> None:
        self.queue.put_nowait({"type": "http.disconnect"})


def part(data: bytes, *, more: bool = False) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


async def test_a_body_comes_in_parts() -> None:
    assert await read_body(Channel(part(b"ab", more=True), part(b"c")).receive, None, 3) == b"abc"


async def test_a_body_too_large_is_refused_before_it_is_kept() -> None:
    with pytest.raises(ApiError) as caught:
        await read_body(Channel().receive, "4", 3)
    assert caught.value.code is Code.BODY_TOO_LARGE
    with pytest.raises(ApiError):
        await read_body(Channel(part(b"ab", more=True), part(b"cd", more=True)).receive, None, 3)


async def test_a_client_may_leave_within_its_body() -> None:
    with pytest.raises(ClientLeftError):
        await read_body(Channel(part(b"ab", more=True), {"type": "http.disconnect"}).receive, None, 9)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1"]
)
async def test_only_json_in_utf8_is_read(kind: str) -> None:
    with pytest.raises(ApiError) as caught:
        await read_object(Headers({"content-type": kind}), Channel(part(b"{}")).receive, 9)
    assert caught.value.code is Code.UNSUPPORTED_MEDIA_TYPE


@pytest.mark.parametrize(
    "headers", [{}, {"content-type": "application/json"}, {"content-type": "Application/JSON; charset=UTF-8"}]
)
async def test_json_is_read(headers: dict[str, str]) -> None:
    assert await read_object(Headers(headers), Channel(part(b'{"a":1}')).receive, 9) == {"a": 1}


async def test_b17_work_ends_when_its_client_leaves() -> None:
    channel = Channel()
    ended = asyncio.Event()

    async def work() -> None:
        channel.leave()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    assert await attend(channel.receive, asyncio.Event(), work()) is Attendance.CLIENT_LEFT
    assert ended.is_set()


async def test_b63_work_ends_when_the_server_closes() -> None:
    closing = asyncio.Event()

    async def work() -> None:
        closing.set()
        await asyncio.Event().wait()

    assert await attend(Channel().receive, closing, work()) is Attendance.SERVER_CLOSING


async def test_work_that_is_done_or_fails_says_so() -> None:
    async def fail() -> None:
        raise ApiError(Code.NO_REPLICA, "none")

    async def succeed() -> None:
        pass

    assert await attend(Channel().receive, asyncio.Event(), succeed()) is Attendance.DONE
    with pytest.raises(ApiError):
        await attend(Channel().receive, asyncio.Event(), fail())


async def test_b16_work_ends_when_the_request_itself_is_cancelled() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    request = asyncio.create_task(attend(Channel().receive, asyncio.Event(), work()))
    await began.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert ended.is_set()


async def test_b37_the_door_is_bounded() -> None:
    door = Door(1)
    with door.pass_through(ANYBODY):
        with pytest.raises(ApiError) as caught, door.pass_through(ANYBODY):
            pass
        assert caught.value.code is Code.SERVER_BUSY
        assert caught.value.headers == {"retry-after": "1"}
    with door.pass_through(ANYBODY):
        pass


async def test_a_key_has_so_many_requests_at_a_time_as_its_line_allows() -> None:
    door = Door(9)
    limited, other = Client("red", is_admin=False, limit=2, name="a"), Client("red", is_admin=False, limit=2, name="b")
    with door.pass_through(limited):
        with door.pass_through(limited):
            with pytest.raises(ApiError) as caught, door.pass_through(limited):
                pass
            assert caught.value.code is Code.RATE_LIMIT_EXCEEDED
            assert caught.value.headers == {"retry-after": "1"}
            with door.pass_through(other), door.pass_through(ANYBODY):
                pass
        with door.pass_through(limited):
            pass


async def test_b63_a_draining_door_waits_for_those_inside() -> None:
    door = Door(5)
    with door.pass_through(ANYBODY):
        draining = asyncio.create_task(door.drain(60))
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as caught, door.pass_through(ANYBODY):
            pass
        assert caught.value.code is Code.DRAINING
        assert not door.closing.is_set()
    await draining
    assert not door.closing.is_set()


async def test_b63_a_door_that_has_waited_enough_closes() -> None:
    door = Door(5)
    with door.pass_through(ANYBODY):
        draining = asyncio.create_task(door.drain(0))
        await door.closing.wait()
        assert not draining.done()
    await draining


async def counting(last: int, closed: list[int]) -> AsyncGenerator[int, None]:
    try:
        for number in range(last):
            await asyncio.sleep(0)
            yield number
        if last == 3:
            raise ApiError(Code.GENERATION_FAILED, "three")
    finally:
        closed.append(last)


@pytest.mark.parametrize("lasts", [(2,), (2, 5), (0, 4, 1)])
async def test_streams_are_interleaved_each_in_order(lasts: tuple[int, ...]) -> None:
    closed: list[int] = []
    items = [item async for item in interleave([counting(last, closed) for last in lasts])]
    for source, last in enumerate(lasts):
        assert [number for origin, number in items if origin == source] == list(range(last))
    assert sorted(closed) == sorted(lasts)


@pytest.mark.parametrize("lasts", [(3,), (3, 100)])
async def test_the_first_failure_ends_all_streams(lasts: tuple[int, ...]) -> None:
    closed: list[int] = []
    with pytest.raises(ApiError):
        async for _ in interleave([counting(last, closed) for last in lasts]):
            pass
    assert sorted(closed) == sorted(lasts)


@pytest.mark.parametrize("lasts", [(9,), (9, 8)])
async def test_b14_streams_left_early_are_all_closed(lasts: tuple[int, ...]) -> None:
    closed: list[int] = []
    streams = interleave([counting(last, closed) for last in lasts])
    await anext(streams)
    await streams.aclose()
    assert sorted(closed) == sorted(lasts)
