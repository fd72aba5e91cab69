"""One request by the `openai` client, read to its end and held against the answer that it has undisturbed."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

import attrs
import openai

from lmpool.bench.chaos.answer import (
    Answer,
    MalformedError,
    StreamError,
    StreamReader,
    differences,
    faults_of_form,
    is_beginning,
    well_formed_error,
    whole_answer,
)
from lmpool.bench.chaos.question import Form, Manner, Question
from lmpool.bench.chaos.rounding import faults_beyond_rounding
from lmpool.bench.chaos.server import Death
from lmpool.bench.chaos.tally import Ask, Fate

TIMEOUT_S = {True: 120.0, False: 400.0}
"""No answer for so long is none, of an exact model and of a real one."""
BURIAL_S = 0.5
"""Until the death of an ingress is known here."""
STALE_S = 2.0
"""A connection that was kept open for the next request may be found dead so long after its ingress died."""
REFUSALS = (429, 503)
NONSENSE_STATUS = 400
HTTP: Any = import_module(openai.DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0])
"""What `openai` sends with, whose errors come through while a stream is read: httpx, or its successor."""
LATE_STATUS, LATE_CODE = 408, "deadline_exceeded"


class Watched(Protocol):
    """A server whose deaths somebody notes."""

    @property
    def url(self) -> str: ...
    @property
    def deaths(self) -> Sequence[Death]: ...


class ChaosClient:
    def __init__(self, server: Watched, model: str, *, is_exact: bool) -> None:
        """`is_exact`: no answer depends on what is computed beside it, as rounding makes those of real models do."""
        self._openai = openai.AsyncOpenAI(
            base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S[is_exact]
        )
        self._server = server
        self._model = model
        self._is_exact = is_exact
        self._open: list[_Exchange] = []

    async def close(self) -> None:
        await self._openai.close()

    def faults(self, question: Question, told: Answer, expected: Answer) -> list[str]:
        """Empty if `told` is the undisturbed answer, as far as that is determined."""
        if self._is_exact:
            return differences(told, expected)
        found = faults_of_form(told, expected)
        return found if found or not question.is_greedy else faults_beyond_rounding(told, expected)

    async def answer(self, question: Question, manner: Manner) -> Answer:
        """Raises what the `openai` client raises, what it sends with, MalformedError, StreamError."""
        return await _Exchange(self._openai, self._model, question, manner).read()

    async def ask(self, question: Question, manner: Manner, expected: Answer) -> Ask:
        exchange = _Exchange(self._openai, self._model, question, manner)
        self._open.append(exchange)
        began = time.monotonic()
        try:
            fate, kind, detail = await self._fate(exchange, expected, began)
        finally:
            self._open.remove(exchange)
        is_cut = fate in (Fate.CANCELLED, Fate.INGRESS_LOST, Fate.REFUSED)
        if is_cut and self._is_exact and not is_beginning(exchange.texts, expected):
            fate, detail = Fate.WRONG, f"it began with {exchange.texts}"
        took = time.monotonic() - began
        where = f"question {question.number} after {took:.1f} s, {_told(manner)}: "
        return Ask(fate, kind, where + detail if detail else "", exchange.longest_gap_s, exchange.differs)

    def note_strike(self) -> None:
        """A worker is struck: any open request may be its own."""
        for exchange in self._open:
            exchange.strikes += 1

    @property
    def strikes_max(self) -> int:
        """Most strikes that an open request has seen since anything came of its answer."""
        return max([exchange.strikes for exchange in self._open], default=0)

    async def _fate(self, exchange: "_Exchange", expected: Answer, began: float) -> tuple[Fate, str, str]:
        try:
            async with asyncio.timeout(exchange.manner.leaves_after_s):
                told = await exchange.read()
        except TimeoutError:
            return Fate.CANCELLED, "", ""
        except openai.APITimeoutError as error:
            return Fate.LOST, "", f"no answer in time: {error!r}"
        except openai.APIStatusError as error:
            return _refusal(error, exchange.question, exchange.manner)
        except StreamError as error:
            if error.code == LATE_CODE and exchange.manner.deadline_ms is not None:
                return Fate.REFUSED, f"{LATE_STATUS} {LATE_CODE}", ""
            return Fate.LOST, "", f"the stream ended with {error}"
        except (MalformedError, ValueError, KeyError) as error:
            return Fate.WRONG, "", repr(error)
        except (openai.APIConnectionError, HTTP.TransportError) as error:
            await asyncio.sleep(BURIAL_S)
            if any(died_since(self._server.deaths, "ingress", began - STALE_S)):
                return Fate.INGRESS_LOST, "", ""
            return Fate.LOST, "", f"{error!r} from {error.__cause__!r}"
        exchange.differs = [choice.text for choice in told.choices] != [choice.text for choice in expected.choices]
        found = self.faults(exchange.question, told, expected)
        return (Fate.WRONG, "", "; ".join(found)) if found else (Fate.COMPLETED, "", "")


class _Exchange:
    """One request and what has come of its answer so far."""

    def __init__(self, client: openai.AsyncOpenAI, model: str, question: Question, manner: Manner) -> None:
        self.question = question
        self.manner = manner
        self.texts: Sequence[str] = ()
        self.longest_gap_s = 0.0
        self.differs = False
        self.strikes = 0
        """Of workers, since the last text of its stream."""
        self._client = client
        self._body = body_of(question, manner, model)
        self._headers = headers_of(manner)
        if manner.is_stream:
            self.texts = [""] * question.choices

    async def read(self) -> Answer:
        return await (self._read_stream() if self.manner.is_stream else self._read_whole())

    async def _read_whole(self) -> Answer:
        endpoint: Any = self._endpoint()
        document = await endpoint.create(**self._body, extra_headers=self._headers)
        return whole_answer(self.question.form, document.model_dump())

    async def _read_stream(self) -> Answer:
        endpoint: Any = self._endpoint()
        reader = StreamReader(self.question.form, self.question.choices, wants_usage=self.manner.wants_usage)
        self.texts = reader.texts
        opened = endpoint.with_streaming_response.create(**self._body, stream=True, extra_headers=self._headers)
        async with opened as response:
            last = 0.0
            async for line in response.iter_lines():
                now = time.monotonic()
                if last and line:
                    self.longest_gap_s = max(self.longest_gap_s, now - last)
                before = sum(map(len, reader.texts))
                reader.feed(line)
                if sum(map(len, reader.texts)) > before:
                    self.strikes = 0
                if self.manner.read_pause_s and line:
                    await asyncio.sleep(self.manner.read_pause_s)
                last = time.monotonic() if line else last
        return reader.answer()

    def _endpoint(self) -> object:
        return self._client.chat.completions if self.question.form is Form.CHAT else self._client.completions


def body_of(question: Question, manner: Manner, model: str) -> Mapping[str, object]:
    """As arguments of the `openai` client's method."""
    extra = {} if manner.salt is None else {"extra_body": {"cache_salt": manner.salt}}
    options = {"stream_options": {"include_usage": True}} if manner.is_stream and manner.wants_usage else {}
    return {"model": model, **question.fields, **extra, **options}


def headers_of(manner: Manner) -> Mapping[str, str]:
    headers = {"x-priority": str(manner.priority)}
    if manner.session is not None:
        headers["x-session-id"] = manner.session
    if manner.deadline_ms is not None:
        headers["x-deadline-ms"] = str(manner.deadline_ms)
    return headers


def died_since(deaths: Sequence[Death], name: str, moment: float) -> list[Death]:
    return [death for death in deaths if death.name == name and death.at >= moment]


def _refusal(error: openai.APIStatusError, question: Question, manner: Manner) -> tuple[Fate, str, str]:
    try:
        told = well_formed_error(error.response.json())
    except (MalformedError, ValueError) as fault:
        return Fate.WRONG, "", f"{error.status_code}: {fault!r}"
    kind = f"{error.status_code} {told['code']}"
    if error.status_code in REFUSALS:
        if "retry-after" in error.response.headers:
            return Fate.REFUSED, kind, ""
        return Fate.WRONG, "", f"{kind} without retry-after"
    if (error.status_code, told["code"]) == (LATE_STATUS, LATE_CODE) and manner.deadline_ms is not None:
        return Fate.REFUSED, kind, ""
    if (error.status_code, told["code"]) == (NONSENSE_STATUS, question.refusal):
        return Fate.REFUSED, kind, ""
    is_failure = error.status_code >= 500
    return (Fate.LOST if is_failure else Fate.WRONG), "", f"{kind}: {told['message']}"


def _told(manner: Manner) -> str:
    """What is unusual in it."""
    return ", ".join(f"{field}={value}" for field, value in attrs.asdict(manner).items() if value)
