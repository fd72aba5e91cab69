"""The answer to one generation request on its way out: a whole document, or a stream of events."""

import asyncio

from starlette.types import Receive, Scope, Send

from lmpool.io.http.answers import event
from lmpool.io.http.errors import ApiError, error_body, error_response
from lmpool.io.http.headers import REQUEST

FAREWELL_S = 2.0
"""How long a client that reads slowly is given to take the error that ends its stream."""


class Reply:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self.is_stream = False
        """Whether events have been sent: then nothing but events can follow."""
        self.is_complete = False

    async def whole(self, body: bytes, requests: str) -> None:
        await self._start(b"application/json", requests, [(b"content-length", str(len(body)).encode())])
        await self._body(body, more=False)

    async def events(self, data: bytes, requests: str) -> None:
        """One or several whole events; `requests` counts for the first."""
        if not self.is_stream:
            self.is_stream = True
            await self._start(b"text/event-stream; charset=utf-8", requests, [(b"cache-control", b"no-cache")])
        await self._body(data, more=True)

    async def end(self, data: bytes) -> None:
        """The last events."""
        await self._body(data, more=False)

    async def fail(self, error: ApiError) -> None:
        """As a response of its own, or as the stream's last event, after which no end mark comes."""
        if not self.is_stream:
            self.is_complete = True
            await error_response(error)(self._scope, self._receive, self._send)
            return
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._body(event(error_body(error)), more=False)
        except TimeoutError:
            self.is_complete = True

    async def _start(self, content_type: bytes, requests: str, headers: list[tuple[bytes, bytes]]) -> None:
        own = [(b"content-type", content_type), (REQUEST.encode(), requests.encode())]
        await self._send({"type": "http.response.start", "status": 200, "headers": own + headers})

    async def _body(self, data: bytes, *, more: bool) -> None:
        self.is_complete = not more
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
