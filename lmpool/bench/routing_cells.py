"""What routing is measured on: workloads and clusters by name, and the rate that each can bear.

`specs/workloads.md` has the table of cells and what saturation means.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from random import Random

import attrs

from lmpool.bench.simulate import each_once
from lmpool.core.batch import PrefillOrder
from lmpool.core.ids import SECOND, Nanos, Rank
from lmpool.core.limits import DECISIONS_KEPT
from lmpool.core.placement.proposal import USUAL, PlacementSettings
from lmpool.sim.collection import uncollected
from lmpool.sim.copy_time import assumed_copies
from lmpool.sim.prompts import Prompts
from lmpool.sim.rack import BEGIN_NS, RackSettings
from lmpool.sim.replay import Replay, make_prompts
from lmpool.sim.step_time import ACCELERATOR_DEFAULT, named_rates
from lmpool.sim.trace import Trace, TraceError, at_speed, jittered, window
from lmpool.sim.trace_formats import read_trace
from lmpool.sim.workload import make_workload

CONVERSATION = "conversation"
IN_TICKS = "conversation-ticks"
SATURATION_SEEDS = (101, 102)
"""None of those that policies are compared on. Their counts are added: those of one are noisy where few arrive."""
SATURATION_POLICIES = ("session-bounded", "longest-prefix", "dynamo-64")
KEPT_UP_SHARE = 0.95
"""Ended over arrived requests, in the second half of the arrivals."""
STRIDE = 1.4
BRACKET = 1.03
"""The search ends when its two sides are within this factor."""
RATE_RANGE = (1e-3, 1e4)


@attrs.frozen
class Entrant:
    """What a name in the matrix stands for."""

    policy: str
    placement: PlacementSettings | None
    """What control does of its own accord."""
    prefill_order: PrefillOrder
    """Of its replicas."""


SHORT_BETWEEN, ARRIVAL = PrefillOrder.SHORT_BETWEEN, PrefillOrder.ARRIVAL
ALONE = {name: Entrant(name, None, SHORT_BETWEEN) for name in each_once()}
"""Every policy once."""
WITH_COPIES = {
    "marginal-time+copies": Entrant("marginal-time", USUAL, SHORT_BETWEEN),
    "mooncake+pulls": Entrant("mooncake", attrs.evolve(USUAL, chains_max=0), SHORT_BETWEEN),
}
"""Have blocks sent between ranks as well. The paper of the second knows copies for requests only."""
IN_ARRIVAL_ORDER = {f"{name}+arrival": Entrant(name, None, ARRIVAL) for name in ALONE}
"""On replicas that take prompts one after the other."""
ENTRANTS = {**ALONE, **WITH_COPIES, **IN_ARRIVAL_ORDER}


@attrs.frozen
class Cell:
    name: str
    workload: str
    """Empty: the recorded trace."""
    is_jittered: bool
    """Whether the recorded arrivals of one moment are spread over its tick."""
    requests: int
    """Of a run."""
    search_requests: int
    """Of a run of the search for its saturation: several times as long as what comes takes to end."""
    guess: float
    """Where that search begins: arrivals a second, or times the recorded speed."""
    kv_blocks: int
    block_size: int
    slow: tuple[tuple[Rank, float], ...]
    cold: tuple[tuple[Rank, Nanos], ...]

    @property
    def rack(self) -> RackSettings:
        return RackSettings(
            replicas=8,
            kv_blocks=self.kv_blocks,
            block_size=self.block_size,
            step_tokens=2_048,
            sequences=256,
            prefill_order=SHORT_BETWEEN,
            rates=named_rates(ACCELERATOR_DEFAULT),
            copies=assumed_copies(self.block_size),
            slow=self.slow,
            cold=self.cold,
            streak_max=10_000,
            decisions_kept=DECISIONS_KEPT,
            placement=None,
        )


def _recorded_cell(name: str, *, is_jittered: bool) -> Cell:
    return Cell(name, "", is_jittered, 3_000, 3_000, 3.5, 2_000, 512, (), ())


def _made(name: str, requests: int, search_requests: int, guess: float) -> Cell:
    return Cell(name, name, False, requests, search_requests, guess, 6_250, 64, (), ())


_SESSIONS = _made("agent-sessions", 3_000, 6_000, 3.2)


CELLS: dict[str, Cell] = {
    cell.name: cell
    for cell in (
        _recorded_cell(CONVERSATION, is_jittered=True),
        _recorded_cell(IN_TICKS, is_jittered=False),
        _SESSIONS,
        _made("hot-session-skew", 1_500, 1_500, 60.0),
        _made("long-decode", 1_500, 3_000, 25.0),
        _made("single-turn", 1_500, 1_500, 34.0),
        _made("one-system-prompt", 1_500, 1_500, 75.0),
        _made("few-long", 1_500, 1_500, 50.0),
        _made("sibling-bursts", 3_000, 3_000, 3.5),
        attrs.evolve(_SESSIONS, name="slow-rank", guess=2.9, slow=((Rank(0), 2.0),)),
        attrs.evolve(_SESSIONS, name="cold-join", cold=((Rank(7), Nanos(30 * SECOND)),)),
    )
}


@attrs.frozen
class Load:
    """Requests to come, and their prompts."""

    trace: Trace
    prompts: Prompts


@lru_cache(maxsize=1)
def _recorded(path: Path) -> Trace:
    return read_trace(path, None)


@lru_cache(maxsize=2)
def load(cell: Cell, recorded: Path | None, requests: int, rate: float, seed: int) -> Load:
    """Raises TraceError. Runs of one load in one process share its prompts."""
    if cell.workload:
        trace = make_workload(cell.workload, requests, rate, seed)
    elif recorded is None:
        raise TraceError(f"the cell {cell.name} needs a trace: --trace FILE")
    else:
        whole = _recorded(recorded)
        start = Random(seed).randint(0, max(len(whole.requests) - requests, 0))
        part = window(whole, start, requests)
        trace = at_speed(jittered(part, seed) if cell.is_jittered else part, rate)
    return Load(trace, make_prompts(trace, cell.block_size))


def late_counts(replay: Replay, span_ns: int) -> tuple[int, int]:
    """Requests that arrived, and that ended, in the second half of the span of open-loop arrivals, which is over."""
    begin, end = BEGIN_NS + span_ns // 2, BEGIN_NS + span_ns
    times = replay.front.times
    arrived = sum(begin <= request.arrived_ns < end for request in times)
    ended = sum(begin <= request.ended_ns < end for request in times)
    return arrived, ended


def keeps_up(cell: Cell, recorded: Path | None, requests: int, rate: float, policy: str) -> bool:
    """Raises TraceError."""
    arrived = ended = 0
    for seed in SATURATION_SEEDS:
        ready = load(cell, recorded, requests, rate, seed)
        span_ns = Nanos(ready.trace.span_ns)
        replay = Replay(ready.trace, ready.prompts, cell.rack, policy, seed)
        with uncollected():
            replay.advance_to(span_ns)
        more_arrived, more_ended = late_counts(replay, span_ns)
        arrived, ended = arrived + more_arrived, ended + more_ended
    return ended >= KEPT_UP_SHARE * arrived


def is_sustained(cell: Cell, recorded: Path | None, requests: int, rate: float) -> bool:
    """Whether any of the known policies keeps up. Raises TraceError."""
    return any(keeps_up(cell, recorded, requests, rate, policy) for policy in SATURATION_POLICIES)


def saturation(guess: float, sustains: Callable[[float], bool]) -> float:
    """The highest rate that is sustained, within `BRACKET`. Raises TraceError if there is none, or no end of them."""
    low, high = guess, guess
    if sustains(guess):
        while low == high or sustains(high):
            low, high = high, high * STRIDE
            if high > RATE_RANGE[1]:
                raise TraceError(f"every rate up to {RATE_RANGE[1]:g} is sustained")
    else:
        while low == high or not sustains(low):
            low, high = low / STRIDE, low
            if low < RATE_RANGE[0]:
                raise TraceError(f"no rate down to {RATE_RANGE[0]:g} is sustained")
    while high / low > BRACKET:
        middle = (low * high) ** 0.5
        if sustains(middle):
            low = middle
        else:
            high = middle
    return low
