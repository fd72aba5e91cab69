"""Everything that crosses a process, one module a pair of processes.

A message is a frozen record. `bytes` fields travel in the binary part of a frame; long lists of the same thing are
parallel columns. `specs/wire.md` has one example frame per message.
"""

from typing import TypeAlias

from lmpool.core.messages.ingress_control import (
    BookingEnded,
    BookingsOffered,
    Busy,
    DecisionsAsked,
    DecisionsReported,
    RouteAsked,
    RouteDecided,
    StateAsked,
    StateReported,
    Unroutable,
)
from lmpool.core.messages.ingress_worker import (
    Abort,
    Accepted,
    CacheCleared,
    ClearCache,
    Ended,
    FinishChoice,
    PromptScored,
    Refused,
    Submit,
    TokensProduced,
)
from lmpool.core.messages.transfer import TransferAnswer, TransferAsked, TransferDecided, TransferOrder
from lmpool.core.messages.worker_control import (
    DrainBegun,
    FullReport,
    Report,
    ReportWanted,
    WorkerJoined,
)

IngressToControl: TypeAlias = RouteAsked | BookingEnded | BookingsOffered | StateAsked | DecisionsAsked | TransferAsked
ControlToIngress: TypeAlias = RouteDecided | Busy | Unroutable | StateReported | DecisionsReported | TransferDecided
IngressToWorker: TypeAlias = Submit | Abort | FinishChoice | ClearCache
WorkerToIngress: TypeAlias = (
    WorkerJoined | TokensProduced | Accepted | Refused | Ended | PromptScored | CacheCleared | DrainBegun
)
WorkerToControl: TypeAlias = WorkerJoined | Report | FullReport | DrainBegun | TransferAnswer
ControlToWorker: TypeAlias = ReportWanted | TransferOrder

Message: TypeAlias = (
    IngressToControl | ControlToIngress | IngressToWorker | WorkerToIngress | WorkerToControl | ControlToWorker
)
