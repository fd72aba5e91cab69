"""The two generation endpoints: from a request's bytes to the last byte of its answer, for a client that may leave."""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from secrets import token_hex
from typing import Any

import attrs
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from lmpool.io.errors import LMPoolError
from lmpool.io.generation import Chunk
from lmpool.io.http.answers import Events, Head, whole_document
from lmpool.io.http.asked import Asked, Envelope
from lmpool.io.http.connection import Attendance, ClientLeftError, attend, read_object
from lmpool.io.http.door import DRAINING_RETRY_S, LINKING_NS, LOADING_RETRY_S, Door
from lmpool.io.http.errors import ApiError, Code
from lmpool.io.http.faults import api_error_of
from lmpool.io.http.gate import caller_of
from lmpool.io.http.headers import read_wishes
from lmpool.io.http.interleave import interleave
from lmpool.io.http.reply import Reply
from lmpool.io.http.service import Context
from lmpool.io.http.tally import Tally
from lmpool.io.log import get_log
from lmpool.io.metrics import Meter, Metrics, RequestOutcome

log = get_log("http")

Reader = Callable[[Mapping[str, Any], Envelope, Context], Asked]


class GenerationEndpoint:
    """An ASGI application for one path."""

    def __init__(self, context: Context, door: Door, metrics: Metrics, path: str, read: Reader) -> None:
        self._context = context
        self._door = door
        self._metrics = metrics
        self._path = path
        self._read = read
        self._opened_ns = context.now()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        meter = Meter(self._metrics, self._path)
        reply = Reply(scope, receive, send)
        outcome = RequestOutcome.ERROR
        try:
            with self._door.pass_through(caller_of(scope).client):
                outcome = await self._serve(scope, receive, reply, meter)
        except ClientLeftError:
            outcome = RequestOutcome.CANCELLED
        except (ApiError, LMPoolError) as error:
            shown = error if isinstance(error, ApiError) else api_error_of(error)
            outcome = _outcome_of(shown, reply)
            _tell(shown, scope, self._path)
            await reply.fail(shown)
        finally:
            meter.end(outcome)
            log.debug("request ended", path=self._path, label=caller_of(scope).label, outcome=outcome.value)

    async def _serve(self, scope: Scope, receive: Receive, reply: Reply, meter: Meter) -> RequestOutcome:
        context, headers = self._context, Headers(scope=scope)
        envelope = Envelope(caller_of(scope), read_wishes(headers), meter.arrived_ns)
        content = await read_object(headers, receive, context.body_bytes_max)
        asked = self._read(content, envelope, context)
        self._metrics.ignored_fields.inc(asked.ignored)
        _check_answers(asked, context.requests_max)
        if not context.service.has_joined and context.now() - self._opened_ns > LINKING_NS:
            raise ApiError(Code.NOT_READY, "No replica is ready yet.", retry_after_s=LOADING_RETRY_S)
        answering = Answering(context, asked, reply, meter)
        attendance = await attend(receive, self._door.closing, answering.run())
        if attendance is Attendance.DONE or reply.is_complete:
            return answering.outcome
        if attendance is Attendance.CLIENT_LEFT:
            return RequestOutcome.CANCELLED
        raise ApiError(Code.DRAINING, "The server is ending.", retry_after_s=DRAINING_RETRY_S)


def _check_answers(asked: Asked, most: int) -> None:
    """Raises ApiError for more than there are ever places for: asking again would not help."""
    prompts = len(asked.requests)
    if prompts * asked.choices > most:
        wanted = f"{asked.choices} (n)" if prompts == 1 else f"{asked.choices} (n) to each of {prompts} prompts"
        text = f"This server computes at most {most} answers at a time, and the request asks for {wanted}."
        raise ApiError(Code.INVALID_VALUE, text, "n" if prompts == 1 else "prompt")


def _tell(error: ApiError, scope: Scope, path: str) -> None:
    """What went wrong on this side is for the operator; what a client did wrong is not."""
    if error.code.status >= Code.INTERNAL_ERROR.status:
        label = caller_of(scope).label
        log.warning("request failed", path=path, label=label, code=error.code.word, cause=error.message)


def _outcome_of(error: ApiError, reply: Reply) -> RequestOutcome:
    if reply.is_stream or error.code in (Code.DEADLINE_EXCEEDED, Code.GENERATION_FAILED, Code.INTERNAL_ERROR):
        return RequestOutcome.ERROR
    return RequestOutcome.REFUSED


class Answering:
    """From the pool's chunks to the client's bytes, for one request."""

    def __init__(self, context: Context, asked: Asked, reply: Reply, meter: Meter) -> None:
        self._context = context
        self._asked = asked
        self._reply = reply
        self._tally = Tally(meter)
        self._head = Head(asked.form.id_prefix + token_hex(12), int(time.time()), asked.model)

    @property
    def outcome(self) -> RequestOutcome:
        return RequestOutcome.LENGTH if self._tally.is_cut else RequestOutcome.STOP

    async def run(self) -> None:
        """Raises LMPoolError."""
        requests = [attrs.evolve(request, answer_id=self._head.id) for request in self._asked.requests]
        sources = [self._context.service.generate(request) for request in requests]
        async with aclosing(interleave(sources)) as chunks:
            await (self._stream(chunks) if self._asked.is_stream else self._whole(chunks))

    async def _whole(self, chunks: AsyncIterator[tuple[int, Chunk]]) -> None:
        choices = self._asked.new_choices()
        chunks_of: list[list[Chunk]] = [[] for _ in choices]
        async for prompt, chunk in chunks:
            self._tally.count(prompt, chunk)
            chunks_of[prompt * self._asked.choices + chunk.choice].append(chunk)
        entries = [choice.whole(made) for choice, made in zip(choices, chunks_of, strict=True)]
        body = whole_document(self._asked.form, self._head, entries, self._tally.usage())
        await self._reply.whole(body, self._tally.request_words())

    async def _stream(self, chunks: AsyncIterator[tuple[int, Chunk]]) -> None:
        choices = self._asked.new_choices()
        events = Events(self._asked.form, self._head, self._asked.counts, self._tally.usage)
        async for prompt, chunk in chunks:
            self._tally.count(prompt, chunk)
            entries = choices[prompt * self._asked.choices + chunk.choice].events(chunk)
            if entries:
                await self._reply.events(b"".join(map(events.of_choice, entries)), self._tally.request_words())
        await self._reply.end(events.end())
