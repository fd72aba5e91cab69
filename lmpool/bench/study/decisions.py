"""Each request with its decision: what the router saw, where the request went, what it really reused and waited."""

from collections.abc import Sequence

import attrs

from lmpool.bench.load.measured import Measured
from lmpool.bench.table import table_lines
from lmpool.bench.trial.evidence import Evidence
from lmpool.core.explanation import request_word
from lmpool.core.fleet import IN_TIME
from lmpool.core.ids import MILLISECOND, SECOND
from lmpool.core.messages.ingress_control import Candidate, Decision

COLUMNS = (
    "request",
    "to",
    "had",
    "holder",
    "had",
    "of",
    "cost",
    "holder's",
    "more",
    "reused",
    "again",
    "waited s",
    "ttft s",
)


@attrs.frozen
class Routed:
    """The last decision for a request, and what became of it. Tokens; costs in the policy's own unit."""

    request: str
    decision: Decision
    chosen: Candidate
    holder: Candidate
    """The rank with the longest ready prefix; of several, the chosen one if it is among them, else the cheapest."""
    block_size: int
    measured: Measured

    @property
    def is_passed_over(self) -> bool:
        return self.chosen.ready_blocks < self.holder.ready_blocks

    @property
    def predicted(self) -> float:
        """By how much the holder would have cost more, as the router saw it; below 0, less."""
        return self.holder.cost - self.chosen.cost

    @property
    def held_tokens(self) -> int:
        return min(self.holder.ready_blocks * self.block_size, self.decision.prompt_tokens)

    @property
    def recomputed_tokens(self) -> int:
        """What the holder had and the request really did not find where it went."""
        return max(self.held_tokens - (self.measured.cached_tokens or 0), 0) if self.is_passed_over else 0

    @property
    def expected_tokens(self) -> int:
        """What the router thought that it would reuse."""
        return self.decision.prompt_tokens - self.chosen.uncached_tokens


@attrs.frozen
class JoinSummary:
    """Of one trial, or of all of one point and arm."""

    requests: int
    joined: int
    """With a decision."""
    passed_over: int
    recomputed_tokens: int
    """In those: what the holder had and was computed again."""
    expected_tokens: int
    """Of all joined: what the router thought that they would reuse."""
    reused_tokens: int
    queued_s: float | None
    """All of them together. None: not told."""


def join(evidence: Evidence) -> list[Routed]:
    """In the order of the trace, of successes. A request that no decision names is left out."""
    last: dict[str, Decision] = {request_word(one.request): one for one in evidence.decisions if one.rank is not None}
    found = []
    for measured in evidence.requests:
        decision = last.get(measured.request)
        if decision is not None and measured.is_success:
            found.append(_routed(decision, measured, evidence.spec.block_size))
    return found


def _routed(decision: Decision, measured: Measured, block_size: int) -> Routed:
    chosen = next(one for one in decision.candidates if one.rank == decision.rank)
    able = [one for one in decision.candidates if one.eligible]
    holder = min(able, key=lambda one: (-one.ready_blocks, one.rank != chosen.rank, one.cost, one.rank))
    return Routed(measured.request, decision, chosen, holder, block_size, measured)


def summary(joined: Sequence[Routed], requests: int) -> JoinSummary:
    queued = [routed.measured.queued_ns for routed in joined if routed.measured.queued_ns is not None]
    return JoinSummary(
        requests=requests,
        joined=len(joined),
        passed_over=sum(routed.is_passed_over for routed in joined),
        recomputed_tokens=sum(routed.recomputed_tokens for routed in joined),
        expected_tokens=sum(routed.expected_tokens for routed in joined),
        reused_tokens=sum(routed.measured.cached_tokens or 0 for routed in joined),
        queued_s=sum(queued) / SECOND if queued else None,
    )


def together(parts: Sequence[JoinSummary]) -> JoinSummary:
    queued = [part.queued_s for part in parts if part.queued_s is not None]
    return JoinSummary(
        requests=sum(part.requests for part in parts),
        joined=sum(part.joined for part in parts),
        passed_over=sum(part.passed_over for part in parts),
        recomputed_tokens=sum(part.recomputed_tokens for part in parts),
        expected_tokens=sum(part.expected_tokens for part in parts),
        reused_tokens=sum(part.reused_tokens for part in parts),
        queued_s=sum(queued) if queued else None,
    )


def passed_over_lines(joined: Sequence[Routed], limit: int) -> list[str]:
    """The dearest first: those that computed most again."""
    passed = sorted((one for one in joined if one.is_passed_over), key=lambda one: -one.recomputed_tokens)
    total = sum(one.recomputed_tokens for one in passed)
    lines = [
        f"{len(passed)} of {len(joined)} decisions passed over the rank with the longest cached prefix, "
        f"and {total:,} tokens that it had were computed again"
    ]
    if passed:
        shown = passed[:limit]
        reasons = ["reason", *(one.decision.reason for one in shown)]
        rows = table_lines(COLUMNS, [_row(one) for one in shown])
        lines += ["", *(f"{row}  {reason}" for row, reason in zip(rows, reasons, strict=True)), ""]
        lines.append(
            "had: ready blocks there, of so many of the prompt; more: what the holder would have cost more, by the "
            f"router ({_unit(passed[0].decision)}); reused and again in tokens; waited at its replica"
        )
    if len(passed) > limit:
        lines.append(f"{len(passed) - limit} more: --limit {len(passed)}")
    return lines


def _unit(decision: Decision) -> str:
    return "milliseconds" if decision.policy in IN_TIME else "its own unit"


def _row(one: Routed) -> list[str]:
    scale = MILLISECOND if one.decision.policy in IN_TIME else 1
    queued = one.measured.queued_ns
    return [
        one.request,
        str(one.chosen.rank),
        str(one.chosen.ready_blocks),
        str(one.holder.rank),
        str(one.holder.ready_blocks),
        str(one.decision.chain_blocks),
        f"{one.chosen.cost / scale:.2f}",
        f"{one.holder.cost / scale:.2f}",
        f"{one.predicted / scale:+.2f}",
        str(one.measured.cached_tokens or 0),
        str(one.recomputed_tokens),
        "" if queued is None else f"{queued / SECOND:.3f}",
        f"{one.measured.ttft_ns / SECOND:.3f}",
    ]
