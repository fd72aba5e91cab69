"""A trial on replicas of this machine, with the embedded engine and its client in this process."""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

from lmpool.bench.load.client import LEAD_NS
from lmpool.bench.load.contents import RandomTokens, prepare, token_fingerprint
from lmpool.bench.load.counters import CacheCondition
from lmpool.bench.load.figures import percentile
from lmpool.bench.load.in_process import EngineEndpoint
from lmpool.bench.load.measured import Measured, Piece
from lmpool.bench.load.player import Player
from lmpool.bench.random_llama import LlamaForm, write_random_llama
from lmpool.bench.trial.drain import is_drained
from lmpool.bench.trial.evidence import CountersRead, Evidence, MachineFacts, Outcome
from lmpool.bench.trial.paced import write_paced_folder
from lmpool.bench.trial.spec import PACED, TINY, Placement, TrialSpec
from lmpool.bench.trial.workload import trial_trace, workload_facts
from lmpool.core.ids import SECOND, Nanos
from lmpool.core.limits import DECISIONS_KEPT
from lmpool.core.messages.ingress_control import Decision, StateReported
from lmpool.io.clock import monotonic_now
from lmpool.io.engine import AsyncEngine
from lmpool.io.errors import LMPoolError
from lmpool.io.settings.sources import program_settings
from lmpool.io.supervision.machine import cores
from lmpool.sim.trace import Trace, with_pauses

TINY_FORM = LlamaForm(layers=4, kv_heads=4, head_dim=16)
TINY_SEED = 1
VOCABULARY = 32_000
"""Prompts have ids below it, or below the model's own where that is known to be less."""
WAIT_MAX_S = 3600
"""All are to be answered, however long the queue is."""
WAITING_LEAST, REQUESTS_LEAST = 256, 1024
"""As a server has them; more where a trial has more requests."""
LOOK_S = 0.2
DRAIN_S = 60.0
"""A pool that holds something for longer is faulty."""
GATHERED_EACH = DECISIONS_KEPT // 2
"""Ended requests after which decisions are fetched: before control forgets any, and rarely, as it takes its time."""


async def play_live(
    spec: TrialSpec, machine: MachineFacts, on_ended: Callable[[int], None], say: Callable[[str], None]
) -> Evidence:
    """`on_ended` hears how many of the measured requests have ended, `say` gets the engine's lines. Of the outcome,
    the times are left to the caller. Raises TraceError, LMPoolError."""
    trace = trial_trace(spec)
    with TemporaryDirectory(prefix="lmpool-trial-") as place:
        model = _made(spec.model, Path(place))
        contents = RandomTokens(vocabulary(model), spec.seed)
        prepare(contents, trace)
        knobs = engine_knobs(spec, model, len(trace.requests))
        async with AsyncEngine(say=say, **knobs) as engine:
            run = _Run(engine, contents)
            faults = await _prime(run, spec, trace)
            before = await _drained(engine)
            gathered = _Gathered(engine, before.decisions)
            begin_ns = Nanos(monotonic_now() + LEAD_NS)
            player = run.player(trace, gathered.count, on_ended)
            measured = await player.run(begin_ns)
            try:
                await gathered.finish()
                after = await _drained(engine)
            except LMPoolError as error:
                after = before
                faults.append(f"no counters after the run: {error}")
    return Evidence(
        spec=spec,
        workload=workload_facts(trace, spec.block_size, token_fingerprint(contents, trace)),
        requests=tuple(_since(begin_ns, one) for one in measured),
        decisions=tuple(gathered.decisions),
        counters=CountersRead(before, after),
        settings=_resolved({**knobs, "model": spec.model}),
        machine=machine,
        outcome=Outcome("", 0.0, percentile(sorted(player.stalls_ns) or [0], 99) / SECOND, tuple(faults)),
    )


def _made(model: str | None, place: Path) -> str | None:
    """A folder in `place` for the models that a trial makes for itself."""
    if model == TINY:
        return str(write_random_llama(place / TINY, TINY_FORM, TINY_SEED))
    return str(write_paced_folder(place / PACED)) if model == PACED else model


@attrs.frozen
class _Run:
    engine: AsyncEngine
    contents: RandomTokens

    def player(self, trace: Trace, count: Callable[[], None], on_ended: Callable[[int], None]) -> Player:
        ended = 0

        def note(_: Measured) -> None:
            nonlocal ended
            ended += 1
            count()
            on_ended(ended)

        endpoint = EngineEndpoint(self.engine, self.contents, monotonic_now)
        return Player(trace, endpoint, monotonic_now, note, is_forced=True)


async def _prime(run: _Run, spec: TrialSpec, trace: Trace) -> list[str]:
    """Asks everything once, without pauses. Answers what went wrong."""
    if spec.cache is not CacheCondition.PRIMED:
        return []
    player = run.player(with_pauses(trace, 0), lambda: None, lambda _: None)
    failed = [one for one in await player.run(Nanos(monotonic_now() + LEAD_NS)) if one.fault]
    return [f"{len(failed)} requests failed while the caches were primed, with {failed[0].fault}"] if failed else []


async def _drained(engine: AsyncEngine) -> StateReported:
    """When everything is given back, or long after: then the counters tell what is held. Raises LMPoolError."""
    until_ns = monotonic_now() + DRAIN_S * SECOND
    while True:
        await asyncio.sleep(LOOK_S)
        state = await engine.pool_state()
        if is_drained(state) or monotonic_now() >= until_ns:
            return state


class _Gathered:
    """The decisions of a run, fetched before control forgets them."""

    def __init__(self, engine: AsyncEngine, number: int) -> None:
        """`number`: of decisions before the run."""
        self.decisions: list[Decision] = []
        self._engine = engine
        self._number = number
        self._ended = 0
        self._fetches: list[asyncio.Task[None]] = []
        self._turn = asyncio.Lock()

    def count(self) -> None:
        """A request has ended."""
        self._ended += 1
        if self._ended % GATHERED_EACH == 0:
            self._fetches.append(asyncio.create_task(self._fetch()))

    async def finish(self) -> None:
        """Raises LMPoolError."""
        await asyncio.gather(*self._fetches)
        await self._fetch()

    async def _fetch(self) -> None:
        async with self._turn:
            found = await self._engine.decisions(None, DECISIONS_KEPT)
            new = [decision for decision in reversed(found) if decision.number > self._number]
            self.decisions += new
            self._number = new[-1].number if new else self._number


def engine_knobs(spec: TrialSpec, model: str | None, requests: int) -> dict[str, Any]:
    """Settings by name; None is as a server has it."""
    arm = spec.placed
    return {
        "model": model,
        "replicas": arm.replicas,
        "policy": arm.policy,
        "placement": arm.placement.value,
        "calibration": spec.calibration if arm.placement is Placement.AUTO else None,
        "kv_blocks": spec.kv_blocks,
        "block_size": spec.block_size,
        "step_tokens": spec.step_tokens,
        "sequences": spec.sequences,
        "threads": spec.threads or max(1, cores() // spec.replicas),
        "dtype": spec.dtype,
        "wait_max_seconds": WAIT_MAX_S,
        "waiting_requests": max(WAITING_LEAST, requests),
        "requests": max(REQUESTS_LEAST, requests),
    }


def _resolved(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """By section."""
    settings = program_settings({name: value for name, value in knobs.items() if value is not None})
    resolved: dict[str, Any] = json.loads(json.dumps(attrs.asdict(settings), default=str))
    return resolved


def vocabulary(model: str | None) -> int:
    """Prompts have ids below it."""
    config = Path(model or "") / "config.json"
    if model is None or not config.is_file():
        return VOCABULARY
    return min(VOCABULARY, int(json.loads(config.read_text()).get("vocab_size", VOCABULARY)))


def _since(begin_ns: Nanos, one: Measured) -> Measured:
    return attrs.evolve(
        one,
        planned_ns=Nanos(one.planned_ns - begin_ns),
        sent_ns=None if one.sent_ns is None else Nanos(one.sent_ns - begin_ns),
        pieces=tuple(Piece(Nanos(piece.at_ns - begin_ns), piece.tokens) for piece in one.pieces),
        closed_ns=Nanos(one.closed_ns - begin_ns),
    )
