"""Chats against a server, workload by workload: made, primed if asked, played, counted before and after."""

import asyncio
import platform
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Protocol

import attrs
import httpx

import lmpool
from lmpool.bench.load.client import Played, Target, play
from lmpool.bench.load.contents import ProseTexts, text_fingerprint
from lmpool.bench.load.counters import CacheCondition, PromptCounters, Proof, proof, read_counters
from lmpool.bench.load.figures import Bounds
from lmpool.bench.load.measured import Measured
from lmpool.bench.load.run import (
    SCHEMA_VERSION,
    Allowed,
    LoadInput,
    LoadReport,
    LoadRun,
    faults,
    is_closed_loop,
    run_figures,
    warnings,
)
from lmpool.core.ids import SECOND, Nanos
from lmpool.io.supervision.machine import cores
from lmpool.sim.bounds import sharing
from lmpool.sim.replay import make_prompts
from lmpool.sim.study_workloads import ABOUT_EACH, ROUNDS
from lmpool.sim.trace import Trace, in_bursts, scaled, until, with_pauses
from lmpool.sim.workload import make_workload

BLOCK_SIZES = (16, 64, 256)
COUNTED_AFTER_S = 1.0
"""Reports come at least twice a second; after this a server's counters are complete."""
USERS_SPARE = 4


class Bar(Protocol):
    def step(self) -> None: ...
    def close(self) -> None: ...


@attrs.frozen
class LoadSettings:
    workload: str
    seed: int
    scale: float
    pauses: float
    rate: float
    seconds: float
    documents: int
    burst: int
    """Users that come at a time."""
    in_flight: int | None
    condition: CacheCondition
    processes: int
    bounds: Bounds
    allowed: Allowed


def chat_trace(settings: LoadSettings) -> Trace:
    """Raises TraceError."""
    name = settings.workload
    if name == "multi-round-chat":
        users = round(settings.rate * settings.seconds * 2) + USERS_SPARE
        made = make_workload(name, users * ROUNDS, settings.rate, settings.seed)
        made = until(in_bursts(made, settings.burst), Nanos(round(settings.seconds * SECOND)))
    else:
        made = make_workload(name, settings.documents * ABOUT_EACH, 1.0, settings.seed)
        if settings.in_flight is not None:
            made = attrs.evolve(made, in_flight_max=settings.in_flight)
    return with_pauses(scaled(made, settings.scale), settings.pauses)


async def chat_report(
    target: Target, each: Sequence[LoadSettings], bar: Callable[[str, int], Bar]
) -> tuple[LoadReport, list[list[Measured]]]:
    """The report and the requests of each run. Raises LoadError, TraceError."""
    began_at = datetime.now(UTC).isoformat(timespec="seconds")
    runs: list[LoadRun] = []
    logs: list[list[Measured]] = []
    for place, settings in enumerate(each):
        # No run sees the texts of another.
        own = attrs.evolve(target, contents_seed=target.contents_seed + place)
        contents = own.contents()
        assert isinstance(contents, ProseTexts)
        run, played = await _run(own, contents, settings, bar)
        runs.append(run)
        logs.append(played.measured)
    report = LoadReport(
        schema_version=SCHEMA_VERSION,
        lmpool=lmpool.__version__,
        python=platform.python_version(),
        machine=f"{platform.machine()} {platform.system()} {platform.release()}",
        cores=cores(),
        began_at=began_at,
        url=target.url,
        model=target.model,
        dialect=target.dialect.value,
        runs=tuple(runs),
    )
    return report, logs


async def _run(
    target: Target, contents: ProseTexts, settings: LoadSettings, bar: Callable[[str, int], Bar]
) -> tuple[LoadRun, Played]:
    trace = chat_trace(settings)
    allows = tuple(sharing(trace, make_prompts(trace, size), size) for size in BLOCK_SIZES)
    if settings.condition is CacheCondition.PRIMED:
        await _play(
            with_pauses(trace, 0), target, contents, settings, bar(f"{settings.workload}, priming", len(trace.requests))
        )
    before = await _counters(target)
    played = await _play(trace, target, contents, settings, bar(settings.workload, len(trace.requests)))
    await asyncio.sleep(COUNTED_AFTER_S)
    after = await _counters(target)
    found = run_figures(trace, played, settings.bounds)
    cache = _proof(settings.condition, before, after, allows[0].tokens, played)
    run = LoadRun(
        input=_input(trace, target, contents, settings),
        sharing=allows,
        cache=cache,
        figures=found,
        faults=faults(found, settings.allowed),
        warnings=warnings(found, cache, played),
    )
    return run, played


async def _play(trace: Trace, target: Target, contents: ProseTexts, settings: LoadSettings, bar: Bar) -> Played:
    try:
        return await play(trace, target, contents, settings.processes, bar.step)
    finally:
        bar.close()


def _input(trace: Trace, target: Target, contents: ProseTexts, settings: LoadSettings) -> LoadInput:
    return LoadInput(
        workload=settings.workload,
        seed=settings.seed,
        rate=settings.rate,
        burst=settings.burst,
        scale=settings.scale,
        pauses=settings.pauses,
        requests=len(trace.requests),
        in_flight_max=trace.in_flight_max,
        fingerprint=trace.fingerprint,
        contents_seed=target.contents_seed,
        contents_fingerprint=text_fingerprint(contents, trace),
        are_lengths_exact=contents.is_exact,
        is_closed_loop=is_closed_loop(trace),
        processes=settings.processes,
    )


async def _counters(target: Target) -> tuple[str, PromptCounters] | None:
    """Of the server's metrics; None where it has none that we know."""
    try:
        async with target.client() as client:
            answer = await client.get("/metrics")
        return read_counters(answer.text) if answer.is_success else None
    except (httpx.HTTPError, ValueError):
        return None


def _proof(
    condition: CacheCondition,
    before: tuple[str, PromptCounters] | None,
    after: tuple[str, PromptCounters] | None,
    allowed: float,
    played: Played,
) -> Proof:
    """By the server's metrics, or else by the counts in its answers."""
    if before is not None and after is not None:
        return proof(condition, f"metrics of {after[0]}", before[1], after[1], allowed)
    told = [one for one in played.measured if one.cached_tokens is not None and one.prompt_tokens]
    if not told:
        return proof(condition, "none", None, None, allowed)
    cached = sum(one.cached_tokens or 0 for one in told)
    asked = sum(one.prompt_tokens or 0 for one in told)
    return proof(condition, "counts in answers", PromptCounters(0, 0), PromptCounters(cached, asked), allowed)
