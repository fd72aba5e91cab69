"""Why a request went where it went, in words: what control saw and decided, beside what really became of it.

Pure, so that a running server and the simulator say the same. Lines are for people; programs read the records.
"""

from collections.abc import Sequence

from lmpool.core.fleet import IN_TIME
from lmpool.core.history import History, Visit
from lmpool.core.ids import MILLISECOND, Nanos, RequestId
from lmpool.core.messages.ingress_control import Candidate, Decision

WAIT_TERMS = ("wait", "queue")
FIRST_TOKEN_TERMS = (*WAIT_TERMS, "prefill")
"""What adds up to the request's own time to its first token, in a policy of time."""

KNOWN_COLUMNS = ("ready", "arriving", "uncached")
MARK = "->"
INDENT = "  "


def request_word(request: RequestId) -> str:
    """An inner request id as clients and operators see it."""
    return f"{request.ingress}-{request.counter}"


def decision_lines(decision: Decision, visit: Visit | None) -> list[str]:
    """`visit`: what became of the decision, where that is known."""
    where = "nowhere" if decision.rank is None else f"to rank {decision.rank}"
    return [
        f"attempt {decision.attempt}: decision {decision.number} of {decision.policy}, {where}: {decision.reason}",
        *(INDENT + line for line in _table(decision)),
        *(INDENT + line for line in _unit_lines(decision)),
        *([f"{INDENT}fetch:    {decision.fetch}"] if decision.fetch else []),
        *(INDENT + line for line in _outcome_lines(decision, visit)),
    ]


def request_lines(history: History, decisions: Sequence[Decision]) -> list[str]:
    """A request with all its attempts. `decisions`: those of it that control still has, in any order."""
    kept = {decision.attempt: decision for decision in decisions}
    visits = {visit.attempt: visit for visit in history.visits}
    lines = [f"request {request_word(history.request)}: {history.prompt_tokens} prompt tokens"]
    for attempt in sorted({**kept, **visits}):
        decision, visit = kept.get(attempt), visits.get(attempt)
        if decision is not None:
            lines += decision_lines(decision, visit)
        elif visit is not None:
            lines += _lone_visit_lines(visit)
    return [*lines, _end_line(history)]


def unknown_lines(word: str, kept: int) -> list[str]:
    return [
        f"nothing is known of request {word!r}: control keeps its newest {kept} decisions, the ingress the {kept} "
        "requests that ended last, and neither those of an earlier life"
    ]


def _table(decision: Decision) -> list[str]:
    """Ranks as rows, what was known and the terms as columns; the chosen one is marked."""
    header = ("", "rank", *KNOWN_COLUMNS, *decision.term_names, "cost")
    rows = [header, *(_row(decision, candidate) for candidate in decision.candidates if candidate.eligible)]
    absent = [candidate for candidate in decision.candidates if not candidate.eligible]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    widths[0] = len(MARK)
    lines = [_aligned(row, widths) for row in rows] if len(rows) > 1 else []
    return [*lines, *(_aligned(("", str(other.rank)), widths) + f"  {other.reason}" for other in absent)]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False))


def _row(decision: Decision, candidate: Candidate) -> tuple[str, ...]:
    known = (candidate.ready_blocks, candidate.arriving_blocks, candidate.uncached_tokens)
    terms = (*candidate.terms, candidate.cost)
    mark = MARK if candidate.rank == decision.rank else ""
    return (mark, str(candidate.rank), *map(str, known), *(_number(decision, term) for term in terms))


def _number(decision: Decision, term: float) -> str:
    return f"{term / MILLISECOND:.2f}" if decision.policy in IN_TIME else f"{term:g}"


def _unit_lines(decision: Decision) -> list[str]:
    unit = "milliseconds" if decision.policy in IN_TIME else "the policy's own unit"
    about = f"ready and arriving in blocks (the prompt has {decision.chain_blocks}), uncached in tokens after copies"
    return [f"{about}, the rest in {unit}"] if any(other.eligible for other in decision.candidates) else []


def _outcome_lines(decision: Decision, visit: Visit | None) -> list[str]:
    chosen = [candidate for candidate in decision.candidates if candidate.rank == decision.rank]
    lines = [f"expected: {_expected(decision, candidate)}" for candidate in chosen]
    if visit is not None:
        lines.append(f"really:   {_met(visit, decision.at_ns)}")
    return lines


def _expected(decision: Decision, chosen: Candidate) -> str:
    reuse = f"{decision.prompt_tokens - chosen.uncached_tokens} of {decision.prompt_tokens} tokens reused"
    if decision.policy not in IN_TIME:
        return f"{reuse}; this policy predicts no times"
    terms = list(zip(decision.term_names, chosen.terms, strict=True))
    wait = sum(term for name, term in terms if name in WAIT_TERMS)
    first = sum(term for name, term in terms if name in FIRST_TOKEN_TERMS)
    return f"{reuse}, {_ms(wait)} of waiting, first token after {_ms(first)}"


def _met(visit: Visit, decided_ns: Nanos) -> str:
    if visit.begun_ns is None or visit.waited_ns is None:
        parts = ["not begun"]
    else:
        parts = [f"{visit.cached_tokens} tokens reused", f"{_ms(visit.waited_ns)} of waiting"]
        if visit.first_token_ns is not None:
            parts.append(f"first token after {_ms(visit.first_token_ns - decided_ns)}")
    return f"{', '.join(parts)}; {visit.end or 'still there'}"


def _lone_visit_lines(visit: Visit) -> list[str]:
    why = "routed by the ingress, as control did not answer" if visit.is_degraded else "its decision is forgotten"
    return [
        f"attempt {visit.attempt}: to rank {visit.rank}; {why}",
        f"{INDENT}really:   {_met(visit, visit.submitted_ns)}",
    ]


def _end_line(history: History) -> str:
    begun = sum(visit.begun_ns is not None for visit in history.visits)
    told = f" ({history.detail.rstrip('.')})" if history.detail else ""
    parts = [f"{history.output_tokens} output tokens"]
    if history.visits:
        parts.append(f"submitted {_ms(history.visits[0].submitted_ns - history.arrived_ns)} after its arrival")
    first = next((visit.first_token_ns for visit in history.visits if visit.first_token_ns is not None), None)
    if first is not None:
        parts.append(f"first token {_ms(first - history.arrived_ns)} after it")
    if history.ended_ns is not None:
        parts.append(f"end {_ms(history.ended_ns - history.arrived_ns)} after it")
    if begun > 1:
        parts.append(f"begun again {begun - 1} {'time' if begun == 2 else 'times'}")
    state = f"open ({history.phase})" if history.outcome is None else history.outcome.value
    return f"outcome: {state}{told}; {', '.join(parts)}"


def _ms(nanos: float) -> str:
    return f"{nanos / MILLISECOND:.2f} ms"
