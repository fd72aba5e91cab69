"""A pool that says what a test tells it to, and the application in front of it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import httpx
import orjson

from lmpool.core.effects import Outcome
from lmpool.core.history import History, Visit
from lmpool.core.ids import MILLISECOND, Epoch, Nanos, Rank, RequestId, TransferId
from lmpool.core.ingress import IngressSnapshot
from lmpool.core.messages.ingress_control import Candidate, Decision, RankState, StateReported
from lmpool.core.messages.transfer import (
    PlacedShown,
    PlacementShown,
    RefusedShown,
    TransferMode,
    TransferShown,
    TransfersShown,
)
from lmpool.io.errors import LMPoolError
from lmpool.io.explained import Explained
from lmpool.io.generation import Chunk, GenerationRequest, NamedLogprob, ScoredToken
from lmpool.io.http.app import Application, create_app
from lmpool.io.http.keys import Keys
from lmpool.io.http.service import Context
from lmpool.io.text.model_text import ModelText
from lmpool.io.transfer_order import TransferWish
from tests.model_folder import CHATML, write_tiny_folder

NAMES = ("tiny", "/models/tiny")
STEP_NS = 10 * MILLISECOND


def scored(word: str, best: int) -> ScoredToken:
    data = word.encode()
    others = tuple(NamedLogprob(f"{word}{rank}", f"{word}{rank}".encode(), -1.0 - rank) for rank in range(best))
    return ScoredToken(NamedLogprob(word, data, -0.5), others, data)


@attrs.define
class ScriptedService:
    """Every choice says `words`, one a token; `error` comes instead of the word at `error_at`."""

    words: Sequence[str] = ("Hello", " ", "world")
    finish: Any = "stop"
    error: LMPoolError | None = None
    error_at: int = 0
    hangs_at: int | None = None
    """Before this word nothing more comes."""
    is_ready: bool = True
    has_joined: bool = True
    tokens_max: int = 4096
    requests: list[GenerationRequest] = attrs.field(factory=list)
    explain_asked: list[tuple[str | None, str | None, int]] = attrs.field(factory=list)
    wishes: list[TransferWish] = attrs.field(factory=list)
    running: int = 0
    gate: asyncio.Event | None = None
    """Every request waits for it, if there is one."""
    hanging: asyncio.Event = attrs.field(factory=asyncio.Event)
    """Set when a request hangs or waits."""
    idle: asyncio.Event = attrs.field(factory=asyncio.Event)
    """Set when a request has ended and none runs."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        self.requests.append(request)
        number = RequestId(Epoch(1), len(self.requests))
        self.running += 1
        self.idle.clear()
        try:
            for index in range(max(1, len(self.words))):
                await self._pause(index)
                for choice in range(request.sampling.choices):
                    yield self._chunk(request, number, choice, index)
        finally:
            self.running -= 1
            if not self.running:
                self.idle.set()

    async def _pause(self, index: int) -> None:
        await asyncio.sleep(0)
        if self.error is not None and index == self.error_at:
            raise self.error
        if self.gate is not None:
            self.hanging.set()
            await self.gate.wait()
        if index == self.hangs_at:
            self.hanging.set()
            await asyncio.Event().wait()

    def _chunk(self, request: GenerationRequest, number: RequestId, choice: int, index: int) -> Chunk:
        word = self.words[index] if self.words else ""
        best = request.sampling.logprobs
        is_last = index >= len(self.words) - 1
        return Chunk(
            request=number,
            choice=choice,
            text=word,
            tokens=(index,),
            logprobs=() if best is None else (scored(word, best),),
            finish=self.finish if is_last else None,
            prompt_tokens=7,
            cached_tokens=4,
            completion_tokens=index + 1,
            queued_ns=Nanos(STEP_NS),
        )

    def snapshot(self) -> IngressSnapshot:
        return IngressSnapshot((("routing", self.running),), self.running, (), 0, 0, 0, True, (Rank(0),), 0)

    async def pool_state(self) -> StateReported:
        return StateReported(1, "marginal-time", (RANK_STATE,), 9, 1, 2, 0, 0, TRANSFERS)

    async def explain(self, word: str | None, tenant: str | None, limit: int) -> Explained:
        self.explain_asked.append((word, tenant, limit))
        return Explained((DECISION,) * min(limit, 3), (HISTORY,))

    async def transfer(self, wish: TransferWish) -> TransferId:
        self.wishes.append(wish)
        if self.error is not None:
            raise self.error
        return TransferId(Epoch(4), len(self.wishes))

    async def clear_cache(self) -> int:
        return 42


TRANSFER = TransferShown(
    transfer=TransferId(Epoch(4), 9),
    source=Rank(0),
    target=Rank(1),
    mode=TransferMode.COPY,
    blocks=3,
    phase="ended",
    outcome="published",
    cause="",
    copy_ns=Nanos(1_500_000),
    took_ns=Nanos(4_000_000),
)
PLACEMENT = PlacementShown(
    admitted=(("pull", 1),),
    refused=(("copy", "not worth it", 4),),
    blocks=(("pull", 3),),
    observed=1,
    observed_ns=30e6,
    error_ns=10e6,
    over_median=1,
    over_p95=0,
    placed=(
        PlacedShown(
            TransferId(Epoch(4), 9),
            "pull",
            Rank(0),
            Rank(1),
            3,
            Nanos(5),
            20e6,
            40e6,
            90e6,
            5e6,
            "published",
            Nanos(30_000_000),
        ),
    ),
    refusals=(RefusedShown(Nanos(7), "copy of 3 blocks", 4),),
)
TRANSFERS = TransfersShown((), (TRANSFER,), (("published", 1),), (("no blocks", 2),), 3, 4096, 1_500_000, PLACEMENT)
RANK_STATE = RankState(Rank(0), Epoch(2), "live", 100, 10, 20, 30, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
DECISION = Decision(
    number=3,
    request=RequestId(Epoch(1), 5),
    attempt=0,
    at_ns=Nanos(11),
    policy="marginal-time",
    rank=Rank(0),
    reason="least cost",
    prompt_tokens=64,
    chain_blocks=4,
    term_names=("own", "followers"),
    candidates=(Candidate(Rank(0), True, "", 2, 1, 16, (1.5, 2.5), 4.0),),
    fetch="",
)

HISTORY = History(
    request=RequestId(Epoch(1), 5),
    tenant="red",
    arrived_ns=Nanos(9),
    prompt_tokens=64,
    output_tokens=2,
    visits=(Visit(0, Rank(0), Epoch(2), False, Nanos(12), Nanos(13), Nanos(1), 48, Nanos(15), "complete"),),
    phase="closed",
    outcome=Outcome.COMPLETE,
    detail="",
    ended_ns=Nanos(20),
)


def ticking() -> Callable[[], Nanos]:
    moments = iter(range(0, 1 << 60, STEP_NS))
    return lambda: Nanos(next(moments))


def application(
    folder: Path,
    service: ScriptedService,
    *,
    keys: Keys | None = None,
    template: str | None = CHATML,
    requests_max: int = 100,
    body_bytes_max: int = 1 << 20,
    now: Callable[[], Nanos] | None = None,
) -> Application:
    context = Context(
        service=service,
        text=ModelText(write_tiny_folder(folder, template=template)),
        names=NAMES,
        keys=keys,
        body_bytes_max=body_bytes_max,
        requests_max=requests_max,
        now=now or ticking(),
        created=1_700_000_000,
    )
    return create_app(context)


def client_of(app: Application) -> httpx.AsyncClient:
    """Answers come whole; streams are read from their bytes."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app.asgi), base_url="http://pool")


def events_of(body: str) -> list[Any]:
    """The documents of a stream; `[DONE]` as it stands."""
    assert body.endswith("\n\n")
    lines = body.removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") for line in lines)
    return ["[DONE]" if line == "data: [DONE]" else orjson.loads(line[6:]) for line in lines]
