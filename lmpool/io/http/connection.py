"""One client's connection while its request is answered: the body in, and whether the client is still there."""

import asyncio
from collections.abc import Coroutine
from enum import Enum
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive

from lmpool.io.http.errors import ApiError, Code
from lmpool.io.http.fields import parse_object

BODY_S = 60.0
"""For a whole body: the largest that is usual takes a minute at 4 Mbit/s. Its place is taken meanwhile."""


class ClientLeftError(Exception):
    """The connection closed before the body was complete; there is nobody to answer."""


class Attendance(Enum):
    """How work for a client came to its end."""

    DONE = "done"
    CLIENT_LEFT = "client left"
    SERVER_CLOSING = "server closing"


async def read_body(receive: Receive, declared: str | None, bytes_max: int) -> bytes:
    """`declared` is the Content-Length header. Raises ApiError (413, before more than `bytes_max` are kept; 408) and
    ClientLeftError."""
    if declared is not None and declared.isdecimal() and int(declared) > bytes_max:
        raise _too_large(bytes_max)
    try:
        async with asyncio.timeout(BODY_S):
            return await _whole_body(receive, bytes_max)
    except TimeoutError:
        text = f"The request body was not complete after {BODY_S:.0f} seconds."
        raise ApiError(Code.BODY_TOO_SLOW, text) from None


async def _whole_body(receive: Receive, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > bytes_max:
            raise _too_large(bytes_max)
        more = message.get("more_body", False)
    return b"".join(parts)


def _too_large(bytes_max: int) -> ApiError:
    return ApiError(Code.BODY_TOO_LARGE, f"The request body is larger than {bytes_max} bytes.")


async def attend(receive: Receive, closing: asyncio.Event, work: Coroutine[Any, Any, None]) -> Attendance:
    """Runs `work` while the client is connected and the server is not `closing`, and cancels it otherwise.

    The body must have been read. What `work` raises is raised here.
    """
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_wait_for_leave(receive))
    ending = asyncio.create_task(closing.wait())
    tasks = (working, leaving, ending)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    if not working.cancelled():
        working.result()
        return Attendance.DONE
    return Attendance.SERVER_CLOSING if not ending.cancelled() else Attendance.CLIENT_LEFT


async def _wait_for_leave(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_object(headers: Headers, receive: Receive, bytes_max: int) -> dict[str, Any]:
    """The JSON object in a request's body. Raises ApiError and ClientLeftError."""
    kind, _, parameters = headers.get("content-type", "application/json").partition(";")
    kind = kind.strip().lower()
    is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    charset = parameters.lower().partition("charset=")[2].strip().strip('"')
    if not is_json or charset not in ("", "utf-8", "utf8"):
        text = "The request body must be JSON in UTF-8: send the header 'Content-Type: application/json'."
        raise ApiError(Code.UNSUPPORTED_MEDIA_TYPE, text)
    return parse_object(await read_body(receive, headers.get("content-length"), bytes_max))
