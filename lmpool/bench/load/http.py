"""An endpoint over HTTP: any server that streams completions or chats of the OpenAI API."""

import json
from collections.abc import Callable
from enum import Enum
from typing import Any

import attrs
import httpx

from lmpool.bench.load.contents import ProseTexts, TokenContents
from lmpool.bench.load.endpoint import Ask, Said, Told
from lmpool.bench.load.stream import Stream
from lmpool.core.ids import Nanos

SENT = "http11.send_request_headers.complete"
"""The connection is there and the request on its way; when all of a long body has left depends on the server."""
CONNECT_S = 10.0
BODY_SHOWN = 300


class Dialect(Enum):
    """Which fields a server is sent."""

    OPENAI = "openai"
    """Those of OpenAI alone: answers end when the model ends them."""
    EXTENDED = "extended"
    """Also `ignore_eos` and `min_tokens`, with which open servers give answers of a set length."""


@attrs.frozen
class HTTPEndpoint:
    client: httpx.AsyncClient
    """Of the server's base URL, with its key and its patience."""
    model: str
    contents: TokenContents | ProseTexts
    """Token ids go to /v1/completions, texts to /v1/chat/completions."""
    dialect: Dialect
    now: Callable[[], Nanos]

    async def ask(self, ask: Ask) -> Told:
        path, body = self._body(ask)
        data = json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        if ask.session:
            headers["x-session-id"] = ask.session
        stream, sent = Stream(), _Sent(self.now)
        try:
            request = self.client.build_request("POST", path, content=data, headers=headers)
            request.extensions["trace"] = sent.note
            sent.at_ns = self.now()
            await self._read(request, stream)
        except httpx.TimeoutException as error:
            stream.fault, stream.detail = "timeout", repr(error)
        except httpx.ConnectError as error:
            stream.fault, stream.detail = "connect", repr(error)
        except httpx.HTTPError as error:
            stream.fault, stream.detail = "connection lost", repr(error)
        stream.close()
        return Told(
            sent_ns=sent.at_ns,
            pieces=tuple(stream.pieces),
            prompt_tokens=stream.prompt_tokens,
            cached_tokens=stream.cached_tokens,
            output_tokens=stream.output_tokens,
            said=Said(stream.text, ()),
            fault=stream.fault,
            detail=stream.detail,
        )

    async def _read(self, request: httpx.Request, stream: Stream) -> None:
        answer = await self.client.send(request, stream=True)
        try:
            if answer.status_code != httpx.codes.OK:
                body = await answer.aread()
                stream.fault = f"http {answer.status_code}{_code(body)}"
                stream.detail = body[:BODY_SHOWN].decode(errors="replace")
                return
            async for line in answer.aiter_lines():
                stream.feed(line, self.now())
                if stream.is_done:
                    return
        finally:
            await answer.aclose()

    def _body(self, ask: Ask) -> tuple[str, dict[str, Any]]:
        tokens = ask.output_tokens
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.dialect is Dialect.EXTENDED:
            body |= {"ignore_eos": True, "min_tokens": tokens}
            body["stream_options"]["continuous_usage_stats"] = True
        if isinstance(self.contents, ProseTexts):
            return "/v1/chat/completions", body | {"messages": messages(ask, self.contents)}
        assert not ask.answers, "answers over HTTP are texts: sessions of several turns can only be asked as chats"
        prompt = [token for part in ask.turns[0] for token in self.contents.tokens(part)]
        return "/v1/completions", body | {"prompt": prompt}


class _Sent:
    """When a request left, if the transport tells; else when it was handed over."""

    def __init__(self, now: Callable[[], Nanos]) -> None:
        self._now = now
        self.at_ns = now()

    async def note(self, event: str, _info: object) -> None:
        if event == SENT:
            self.at_ns = self._now()


def messages(ask: Ask, contents: ProseTexts) -> list[dict[str, str]]:
    """The first part of a session, where it has several, is the system's; the others of a turn are one user's word."""
    first, *later = ask.turns
    system = [{"role": "system", "content": contents.text(first[0])}] if len(first) > 1 else []
    told = [*system, _user(first[len(system) :], contents)]
    for said, parts in zip(ask.answers, later, strict=True):
        told += [{"role": "assistant", "content": said.text}, _user(parts, contents)]
    return told


def _user(parts: tuple[Any, ...], contents: ProseTexts) -> dict[str, str]:
    return {"role": "user", "content": "\n\n".join(contents.text(part) for part in parts)}


def _code(body: bytes) -> str:
    """Of an error in the API's shape, with a blank before it."""
    try:
        return f" {json.loads(body)['error']['code']}"
    except (ValueError, KeyError, TypeError):
        return ""
