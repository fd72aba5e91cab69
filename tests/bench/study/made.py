"""Evidence made by hand: valid, and with figures that follow from the spec alone."""

from collections.abc import Mapping
from pathlib import Path

import attrs

from lmpool.bench.load.measured import Measured, Piece
from lmpool.bench.trial.checks import problems
from lmpool.bench.trial.evidence import (
    CountersRead,
    Evidence,
    MachineFacts,
    Outcome,
    WorkloadFacts,
    write_evidence,
)
from lmpool.bench.trial.spec import TrialSpec
from lmpool.core.ids import MILLISECOND, SECOND, Epoch, Nanos, Rank, RequestId
from lmpool.core.messages.ingress_control import Candidate, Decision, RankState, StateReported
from lmpool.core.messages.transfer import TransfersShown
from lmpool.core.route import POLICIES
from lmpool.sim.bounds import Sharing

REQUESTS, PROMPT, OUTPUT = 4, 64, 2
MACHINE = MachineFacts("0", "3.11", {"attrs": "25"}, "Linux", "a processor", 2, None)
CACHED: Mapping[str, int] = {"round-robin": 16, "default": 32}
"""Tokens that each request but the first finds, by arm; with any other none."""


def rank_state(spec: TrialSpec, rank: int, computed: int, cached: int, routed: int) -> RankState:
    return RankState(
        rank=Rank(rank),
        epoch=Epoch(1),
        membership="live",
        blocks=spec.kv_blocks,
        blocks_free=spec.kv_blocks,
        blocks_cached=0,
        resident_hashes=0,
        waiting=0,
        prefilling=0,
        decoding=0,
        booked=0,
        prefill_tokens=0,
        tokens_computed=computed,
        tokens_cached=cached,
        steps_failed=0,
        preemptions=0,
        routed=routed,
    )


def state(spec: TrialSpec, ranks: tuple[RankState, ...]) -> StateReported:
    nothing = TransfersShown((), (), (), (), 0, 0, 0, None)
    return StateReported(0, POLICIES[spec.placed.policy]().name, ranks, 0, 0, 0, 0, 0, nothing)


def decision(spec: TrialSpec, number: int) -> Decision:
    """The first goes to rank 0; later ones to rank 1, though rank 0 has three blocks more."""
    chosen = Candidate(Rank(1), True, "", 1, 0, PROMPT - 16, (3.0,), 3.0 * MILLISECOND)
    holder = Candidate(Rank(0), True, "", 4, 0, 1, (1.0,), 1.0 * MILLISECOND)
    empty = tuple(Candidate(Rank(rank), True, "", 0, 0, PROMPT, (1.0,), 1.0 * MILLISECOND) for rank in (0, 1))
    return Decision(
        number=number + 1,
        request=RequestId(Epoch(1), number),
        attempt=0,
        at_ns=Nanos(0),
        policy=POLICIES[spec.placed.policy]().name,
        rank=Rank(1 if number else 0),
        reason="by hand",
        prompt_tokens=PROMPT,
        chain_blocks=4,
        term_names=("wait",),
        candidates=(holder, chosen) if number else empty,
        fetch="",
    )


def answer(spec: TrialSpec, number: int, cached: int) -> Measured:
    """Later repetitions are slower."""
    planned = Nanos(number * SECOND)
    first_ns = (100 - cached) * (1 + spec.repetition) * MILLISECOND
    return Measured(
        number=number,
        session="",
        planned_ns=planned,
        sent_ns=planned,
        pieces=(Piece(Nanos(planned + first_ns), 1), Piece(Nanos(planned + first_ns + 10 * MILLISECOND), 1)),
        closed_ns=Nanos(planned + first_ns + 10 * MILLISECOND),
        prompt_tokens=PROMPT,
        cached_tokens=cached,
        output_tokens=OUTPUT,
        wanted_tokens=OUTPUT,
        fault="",
        detail="",
        request=f"1-{number}",
        queued_ns=5 * MILLISECOND,
    )


def evidence(spec: TrialSpec, cached: int | None = None, sharing: float = 0.6) -> Evidence:
    """`sharing`: what the trace allows."""
    found = CACHED.get(spec.arm, 0) if cached is None else cached
    reused = [found if number else 0 for number in range(REQUESTS)]
    before = tuple(rank_state(spec, rank, 0, 0, 0) for rank in range(2))
    after = (
        rank_state(spec, 0, PROMPT, 0, 1),
        rank_state(spec, 1, PROMPT * (REQUESTS - 1) - sum(reused), sum(reused), REQUESTS - 1),
    )
    return Evidence(
        spec=spec,
        workload=WorkloadFacts(
            fingerprint=f"{spec.workload}-{spec.seed}",
            contents="",
            requests=REQUESTS,
            prompt_tokens=REQUESTS * PROMPT,
            output_tokens=REQUESTS * OUTPUT,
            in_flight_max=None,
            continues=(None,) * REQUESTS,
            sharing=Sharing(spec.block_size, 0.75, sharing),
        ),
        requests=tuple(answer(spec, number, cached) for number, cached in enumerate(reused)),
        decisions=tuple(decision(spec, number) for number in range(REQUESTS)),
        counters=CountersRead(state(spec, before), state(spec, after)),
        settings={},
        machine=MACHINE,
        outcome=Outcome("2026-01-01T00:00:00+00:00", 1.5, 0.0, ()),
    )


class Bench:
    """Takes the place of fresh processes. `spoiled`: how many times a trial of this arm and repetition fails."""

    def __init__(self, spoiled: Mapping[tuple[str, int], int] | None = None, sharing: float = 0.6) -> None:
        self.performed: list[TrialSpec] = []
        self._sharing = sharing
        self._spoiled = dict(spoiled or {})

    def perform(self, spec: TrialSpec, folder: Path, log: Path) -> int:
        self.performed.append(spec)
        log.write_text("began\nended\n")
        made = evidence(spec, None, self._sharing)
        left = self._spoiled.get((spec.arm, spec.repetition), 0)
        if left:
            self._spoiled[spec.arm, spec.repetition] = left - 1
            made = attrs.evolve(made, outcome=attrs.evolve(made.outcome, faults=("a replica was lost",)))
        write_evidence(folder, made)
        return 1 if problems(made) else 0


PLAN = """\
schema = 1
name = "by-hand"
question = "Does it reuse more?"
venue = "simulator"
seed = 7
repetitions = 3
arms = ["round-robin", "default"]
metrics = ["computed_tokens", "reuse", "request_hit", "ttft_mean_s"]

[[workload]]
name = "agent-sessions"
requests = 12
rates = [1.0]

[budget]
blocks = [100, 200]

[system]
replicas = 2

[[rule]]
name = "computes less"
kind = "success"
metric = "computed_tokens"
arm = "default"
against = "round-robin"
statistic = "ratio"
bound = "upper 95"
at_most = 0.8
"""
