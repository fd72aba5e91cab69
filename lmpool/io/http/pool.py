"""The pool from inside, as JSON: states of the replicas, decisions with every term, and clearing caches."""

from typing import Any

import attrs

from lmpool.core.explanation import request_word
from lmpool.core.history import History
from lmpool.core.ids import SECOND, Nanos, TransferId
from lmpool.core.limits import DECISIONS_KEPT
from lmpool.core.messages.ingress_control import Candidate, Decision, StateReported
from lmpool.core.messages.transfer import PlacedShown, PlacementShown, TransferShown, TransfersShown
from lmpool.io.explained import Explained

DECISIONS_DEFAULT = 20


def state_document(state: StateReported) -> dict[str, Any]:
    return {
        "policy": state.policy,
        "replicas": [attrs.asdict(rank) for rank in state.ranks],
        "page_table_hashes": state.page_table_hashes,
        "bookings": state.bookings,
        "decisions": state.decisions,
        "stale_dropped": state.stale_dropped,
        "resyncs": state.resyncs,
        "transfers": transfers_document(state.transfers),
    }


def transfers_document(shown: TransfersShown) -> dict[str, Any]:
    return {
        "under_way": [_transfer_document(transfer) for transfer in shown.under_way],
        "over": [_transfer_document(transfer) for transfer in shown.over],
        "outcomes": dict(shown.outcomes),
        "refusals": dict(shown.refusals),
        "blocks": shown.blocks,
        "bytes": shown.size_bytes,
        "copy_seconds": shown.copy_ns / SECOND,
        "placement": None if shown.placement is None else _placement_document(shown.placement),
    }


def _placement_document(shown: PlacementShown) -> dict[str, Any]:
    return {
        "admitted": dict(shown.admitted),
        "refused": [{"occasion": occasion, "gate": gate, "times": times} for occasion, gate, times in shown.refused],
        "published_blocks": dict(shown.blocks),
        "predictions": shown.observed,
        "seconds": shown.observed_ns / SECOND,
        "error_seconds": shown.error_ns / SECOND,
        "over_median": shown.over_median,
        "over_p95": shown.over_p95,
        "placed": [_placed_document(placed) for placed in shown.placed],
        "refusals": [attrs.asdict(refusal) for refusal in shown.refusals],
    }


def _placed_document(placed: PlacedShown) -> dict[str, Any]:
    return {
        "transfer": transfer_word(placed.transfer),
        "occasion": placed.occasion,
        "source": placed.source,
        "target": placed.target,
        "blocks": placed.blocks,
        "began_ns": placed.began_ns,
        "predicted_seconds": placed.median_ns / SECOND,
        "predicted_p95_seconds": placed.p95_ns / SECOND,
        "saves_seconds": placed.saved_ns / SECOND,
        "rent_seconds": placed.rent_ns / SECOND,
        "outcome": placed.outcome or None,
        "seconds": _seconds(placed.took_ns),
    }


def _seconds(time: Nanos | None) -> float | None:
    return None if time is None else time / SECOND


def transfer_word(transfer: TransferId) -> str:
    """As clients know it."""
    return f"{transfer.control}-{transfer.counter}"


def _transfer_document(transfer: TransferShown) -> dict[str, Any]:
    return {
        "transfer": transfer_word(transfer.transfer),
        "source": transfer.source,
        "target": transfer.target,
        "mode": transfer.mode.value,
        "blocks": transfer.blocks,
        "phase": transfer.phase,
        "outcome": transfer.outcome or None,
        "cause": transfer.cause or None,
        "copy_seconds": _seconds(transfer.copy_ns),
        "seconds": _seconds(transfer.took_ns),
    }


def explained_document(explained: Explained) -> dict[str, Any]:
    return {
        "kept": DECISIONS_KEPT,
        "decisions": [decision_document(decision) for decision in explained.decisions],
        "requests": [history_document(history) for history in explained.histories],
    }


def history_document(history: History) -> dict[str, Any]:
    return {
        "request": request_word(history.request),
        "tenant": history.tenant,
        "arrived_ns": history.arrived_ns,
        "prompt_tokens": history.prompt_tokens,
        "output_tokens": history.output_tokens,
        "visits": [attrs.asdict(visit) for visit in history.visits],
        "phase": history.phase,
        "outcome": None if history.outcome is None else history.outcome.value,
        "detail": history.detail,
        "ended_ns": history.ended_ns,
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
        "fetch": decision.fetch or None,
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
