"""A small evidence made by hand, whose figures can be computed on paper, and specs of small trials."""

import attrs

from lmpool.bench.load.counters import CacheCondition
from lmpool.bench.load.measured import Measured, Piece
from lmpool.bench.trial.evidence import CountersRead, Evidence, MachineFacts, Outcome, WorkloadFacts
from lmpool.bench.trial.spec import TrialSpec, Venue
from lmpool.core.ids import MILLISECOND, Epoch, Nanos, Rank, RequestId
from lmpool.core.messages.ingress_control import Candidate, Decision, RankState, StateReported
from lmpool.core.messages.transfer import TransfersShown
from lmpool.sim.bounds import Sharing

SPEC = TrialSpec(
    venue=Venue.LIVE,
    workload="agent-sessions",
    requests=36,
    rate=2.0,
    scale=0.02,
    pauses=0.0,
    in_flight=None,
    turns=4,
    arm="round-robin",
    replicas=2,
    kv_blocks=300,
    block_size=16,
    model=None,
    step_tokens=128,
    sequences=16,
    threads=1,
    dtype="auto",
    calibration=None,
    rates=None,
    e2e_max_s=0.1,
    late_max_s=0.05,
    seed=3,
    repetition=0,
    cache=CacheCondition.COLD,
)
MACHINE = MachineFacts("0", "3", {"attrs": "1"}, "a system", "", 2, None)


def measured(number: int, planned_ms: float, first_ms: float, last_ms: float, prompt: int, cached: int) -> Measured:
    """Of three output tokens; it waited for a tenth of the time to the first."""
    planned, first, last = (Nanos(round(at_ms * MILLISECOND)) for at_ms in (planned_ms, first_ms, last_ms))
    pieces = (Piece(first, 1), Piece(last, 2))
    queued_ns = (first - planned) // 10
    return Measured(number, "s", planned, planned, pieces, last, prompt, cached, 3, 3, "", "", f"1-{number}", queued_ns)


def decision(number: int, request: int, rank: int) -> Decision:
    candidates = tuple(Candidate(Rank(each), True, "", 0, 0, 40, (), 0.0) for each in range(2))
    name = RequestId(Epoch(1), request)
    return Decision(number, name, 0, Nanos(0), "round-robin", Rank(rank), "next", 40, 2, (), candidates, "")


def rank_state(rank: int, computed: int, cached: int, preemptions: int, routed: int) -> RankState:
    return RankState(
        rank=Rank(rank),
        epoch=Epoch(2 + rank),
        membership="live",
        blocks=300,
        blocks_free=200,
        blocks_cached=100,
        resident_hashes=100,
        waiting=0,
        prefilling=0,
        decoding=0,
        booked=0,
        prefill_tokens=0,
        tokens_computed=computed,
        tokens_cached=cached,
        steps_failed=0,
        preemptions=preemptions,
        routed=routed,
    )


def pool_state(published: int, blocks: int, *ranks: RankState) -> StateReported:
    transfers = TransfersShown((), (), (("published", published), ("refused", 1)), (), blocks, 0, 0, None)
    return StateReported(0, "round-robin", ranks, 0, 0, 0, 0, 0, transfers)


EVIDENCE = Evidence(
    spec=SPEC,
    workload=WorkloadFacts("f", "c", 4, 40 + 40 + 90 + 90, 12, None, (None, None, 0, 1), Sharing(16, 0.5, 0.4)),
    requests=(
        measured(0, 0, 20, 60, 40, 0),
        measured(1, 10, 50, 90, 40, 0),
        measured(2, 60, 90, 150, 90, 32),
        measured(3, 90, 150, 210, 90, 0),
    ),
    decisions=(decision(8, 0, 0), decision(9, 1, 1), decision(10, 2, 0), decision(11, 3, 0)),
    counters=CountersRead(
        pool_state(1, 10, rank_state(0, 500, 100, 0, 5), rank_state(1, 500, 100, 2, 2)),
        pool_state(3, 25, rank_state(0, 500 + 188, 132, 1, 8), rank_state(1, 500 + 50, 100, 2, 3)),
    ),
    settings={"routing": {"policy": "round-robin"}},
    machine=MACHINE,
    outcome=Outcome("2026-01-01T00:00:00+00:00", 1.5, 0.001, ()),
)
"""The third request finds two blocks of its session; rank 0 preempted a sequence, which computed 10 tokens again."""


def with_rank(state: StateReported, rank: RankState) -> StateReported:
    return attrs.evolve(state, ranks=tuple(rank if old.rank == rank.rank else old for old in state.ranks))
