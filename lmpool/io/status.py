"""`lmpool status`: what a running server says of its pool, as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from lmpool.io.pool_client import fetch_document

COLUMNS = ("rank", "state", "blocks", "used", "cached", "free", "hits", "running", "waiting", "routed")


def fetch_state(url: str, key: str | None) -> Mapping[str, Any]:
    """Raises ClientError."""
    return fetch_document(url, "/pool/state", key)


def state_lines(state: Mapping[str, Any]) -> list[str]:
    rows = [COLUMNS, *(_row(replica) for replica in state["replicas"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    about = f"policy {state['policy']}, {state['bookings']} open requests, {state['decisions']} decisions"
    return [f"{about}, {state['page_table_hashes']} blocks known", *lines]


def _row(replica: Mapping[str, Any]) -> Sequence[str]:
    free, cached, blocks = replica["blocks_free"], replica["blocks_cached"], replica["blocks"]
    prompt_tokens = replica["tokens_cached"] + replica["tokens_computed"]
    hits = f"{100 * replica['tokens_cached'] / prompt_tokens:.0f} %" if prompt_tokens else "-"
    running = replica["prefilling"] + replica["decoding"]
    cells = (replica["rank"], replica["membership"], blocks, blocks - free - cached, cached, free, hits)
    return [str(cell) for cell in (*cells, running, replica["waiting"], replica["routed"])]
