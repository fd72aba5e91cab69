"""When a pool serves and has given everything back: the moment at which its counters are complete."""

from lmpool.core.messages.ingress_control import StateReported

LIVE = "live"
"""The membership of a rank that serves."""


def is_drained(state: StateReported) -> bool:
    """Every rank live, no booking, no transfer, and every block free or merely cached, as control knows."""
    at_rest = (rank.membership == LIVE and rank.blocks == rank.blocks_free + rank.blocks_cached for rank in state.ranks)
    return not state.bookings and not state.transfers.under_way and all(at_rest)
