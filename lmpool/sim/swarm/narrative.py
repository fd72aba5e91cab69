"""The story of a run: one line an event, with its time, who, what, and what follows."""

from collections.abc import Callable
from enum import Enum

import attrs

from lmpool.core.effects import RunStep, Send
from lmpool.core.events import PeerJoined, PeerLost, Received, StepCompleted, Tick
from lmpool.core.ids import Nanos, Peer, RequestId, Role, TransferId
from lmpool.core.messages.ingress_worker import TokensProduced
from lmpool.core.messages.worker_control import FullReport, Report
from lmpool.core.plan import BatchPlan
from lmpool.core.prefix import HASH_BYTES

BYTES_SHOWN = 4
FIELDS_MAX = 100


class Narrative:
    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._line = ""

    def tell(self, now: Nanos, text: str) -> None:
        self._flush()
        self._write(f"{now / 1e6:12.6f} ms  ======== {text}")

    def lived(self, now: Nanos, peer: Peer) -> None:
        self.tell(now, f"{short(peer)} begins to live")

    def begins(self, now: Nanos, peer: Peer, event: object) -> None:
        """The line is kept until it is known what follows; it is written even if nothing does."""
        self._flush()
        self._line = f"{now / 1e6:12.6f} ms  {short(peer):<14} {happening(event)}"

    def handled(self, now: Nanos, peer: Peer, effects: list[object]) -> None:
        if effects:
            self._line += "  ->  " + "; ".join(map(happening, effects))
        self._flush()

    def close(self) -> None:
        self._flush()

    def _flush(self) -> None:
        if self._line:
            self._write(self._line)
        self._line = ""


def happening(what: object) -> str:
    match what:
        case Tick():
            return "Tick"
        case PeerJoined(peer=peer):
            return f"joined by {short(peer)}"
        case PeerLost(peer=peer):
            return f"lost {short(peer)}"
        case Received(peer=peer, message=message):
            return f"hears {short(peer)}: {fields(message)}"
        case Send(peer=peer, message=message):
            return f"to {short(peer)}: {fields(message)}"
        case RunStep(plan=plan):
            return f"RunStep({step(plan)})"
        case StepCompleted(result=result):
            return f"StepCompleted({result.step}: {' '.join(map(str, result.tokens))})"
        case _:
            return fields(what)


def step(plan: BatchPlan) -> str:
    rows = [f"slot {row.slot} {row.start}+{row.length}{' samples' if row.samples else ''}" for row in plan.rows]
    return f"{plan.step}: {', '.join(rows)}"


def fields(record: object) -> str:
    name = type(record).__name__
    match record:
        case Report() | FullReport():
            hashes = record.added if isinstance(record, Report) else record.hashes
            removed = len(record.removed) // HASH_BYTES if isinstance(record, Report) else 0
            requests = dict(zip(*_prefills(record), strict=True))
            ended = [short(request) for request in record.ended] if isinstance(record, Report) else []
            left = {short(request): tokens for request, tokens in requests.items()}
            return f"{name}(v{record.version} +{len(hashes) // HASH_BYTES} -{removed} prefill {left} ended {ended})"
        case TokensProduced():
            rows = zip(record.requests, record.choices, record.output_indexes, record.tokens, strict=True)
            return f"{name}({', '.join(f'r{of}.{choice}[{index}]={token}' for of, choice, index, token in rows)})"
        case _ if attrs.has(type(record)):
            names = [field.name for field in attrs.fields(type(record))]  # type: ignore[arg-type]
            return f"{name}({', '.join(f'{field}={short(getattr(record, field))}' for field in names)})"
        case _:
            return short(record)


def _prefills(report: Report | FullReport) -> tuple[tuple[RequestId, ...], tuple[int, ...]]:
    requests = report.prefill_requests if isinstance(report, Report) else report.requests
    return requests, report.prefill_tokens


def short(value: object) -> str:
    match value:
        case Peer(role=Role.WORKER, rank=rank, epoch=epoch):
            return f"worker {rank}.{epoch}"
        case Peer(role=role, epoch=epoch):
            return f"{role.value} {epoch}"
        case RequestId(ingress=ingress, counter=counter):
            return f"r{ingress}.{counter}"
        case TransferId(control=control, counter=counter):
            return f"t{control}.{counter}"
        case bytes():
            return f"<{len(value)}: {value[:BYTES_SHOWN].hex()}>" if value else "<>"
        case tuple():
            text = f"({', '.join(map(short, value))})"
            return text if len(text) < FIELDS_MAX else f"({len(value)} items)"
        case Enum():
            return str(value.value)
        case _:
            text = str(value)
            return text if len(text) < FIELDS_MAX else text[:FIELDS_MAX] + "..."
