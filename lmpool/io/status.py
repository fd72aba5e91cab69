"""`lmpool status`: what a running server says of its pool, as a table."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TIMEOUT_S = 10.0
COLUMNS = ("rank", "state", "blocks", "used", "cached", "free", "hits", "running", "waiting", "routed")


class StatusError(Exception):
    """One line for the operator."""


def first_key(path: Path) -> str:
    """Of a server's own key file. Raises StatusError."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StatusError(f"cannot read the key file {path}: {error}") from error
    keys = [words[0] for line in lines if (words := line.partition("#")[0].split())]
    if not keys:
        raise StatusError(f"{path} has no keys")
    return keys[0]


def fetch_state(url: str, key: str | None) -> Mapping[str, Any]:
    """The answer of /pool/state. Raises StatusError."""
    if not url.startswith(("http://", "https://")):
        raise StatusError(f"{url!r} is no address of a server; it looks like http://127.0.0.1:8000")
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url.rstrip("/") + "/pool/state", headers=headers)  # noqa: S310 (checked above)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            state: Mapping[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise StatusError(f"{url} answers {error.code}: {_told(error.read())}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise StatusError(f"no server answers at {url} ({reason}); name another with --url") from error
    return state


def _told(body: bytes) -> str:
    """The message of an answer in the shape of all our errors, or what there is instead."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace").strip() or "no reason given"


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
