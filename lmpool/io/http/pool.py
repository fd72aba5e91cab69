"""The pool from inside, as JSON: states of the replicas, decisions with every term, and clearing caches."""

from typing import Any

import attrs

from lmpool.core.ids import Epoch, RequestId
from lmpool.core.messages.ingress_control import Candidate, Decision, StateReported
from lmpool.io.http.errors import ApiError, Code

DECISIONS_DEFAULT = 20


def request_word(request: RequestId) -> str:
    """An inner request id as headers and decisions show it."""
    return f"{request.ingress}-{request.counter}"


def parse_request_word(word: str) -> RequestId:
    """Raises ApiError."""
    ingress, dash, counter = word.partition("-")
    if not (dash and ingress.isdecimal() and counter.isdecimal() and word.isascii() and len(word) <= 40):
        raise ApiError(Code.INVALID_VALUE, "request must look like 1-23, as the X-LMPool-Request header.", "request")
    return RequestId(Epoch(int(ingress)), int(counter))


def state_document(state: StateReported) -> dict[str, Any]:
    return {
        "policy": state.policy,
        "replicas": [attrs.asdict(rank) for rank in state.ranks],
        "page_table_hashes": state.page_table_hashes,
        "bookings": state.bookings,
        "decisions": state.decisions,
        "stale_dropped": state.stale_dropped,
        "resyncs": state.resyncs,
    }


def decision_document(decision: Decision) -> dict[str, Any]:
    return {
        "number": decision.number,
        "request": request_word(decision.request),
        "attempt": decision.attempt,
        "at_ns": decision.at_ns,
        "policy": decision.policy,
        "rank": decision.rank,
        "reason": decision.reason,
        "prompt_tokens": decision.prompt_tokens,
        "chain_blocks": decision.chain_blocks,
        "candidates": [_candidate_document(candidate, decision.term_names) for candidate in decision.candidates],
    }


def _candidate_document(candidate: Candidate, term_names: tuple[str, ...]) -> dict[str, Any]:
    return {
        "rank": candidate.rank,
        "eligible": candidate.eligible,
        "reason": candidate.reason,
        "ready_blocks": candidate.ready_blocks,
        "arriving_blocks": candidate.arriving_blocks,
        "uncached_tokens": candidate.uncached_tokens,
        "terms": dict(zip(term_names, candidate.terms, strict=False)),
        "cost": candidate.cost,
    }
