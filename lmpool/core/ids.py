"""Nominal identities. A number never travels without the number that says which life it belongs to."""

from enum import Enum
from typing import NamedTuple, NewType

Nanos = NewType("Nanos", int)
"""Nanoseconds of one monotonic clock that every process of a machine reads (or of the simulator)."""

Rank = NewType("Rank", int)
"""Number of a replica, from 0. A rank is one block id space, whatever number of devices hold it."""

BlockId = NewType("BlockId", int)
"""Index of a physical block in one rank's pool."""

Generation = NewType("Generation", int)
"""Bumped each time a block id is reused: the ABA guard of a block id."""

Epoch = NewType("Epoch", int)
"""One life of a process; rises within a run of the supervisor."""

Version = NewType("Version", int)
"""Order of reports inside one epoch, from 1."""

StepNumber = NewType("StepNumber", int)
"""Order of forward passes inside one epoch of a worker, from 1."""

Slot = NewType("Slot", int)
"""A runner's number for one live sequence; reused after the sequence has left."""

BlockHash = NewType("BlockHash", bytes)
"""16 bytes: digest of a complete block and of everything before it (`prefix.py`)."""

SECOND = Nanos(1_000_000_000)
MILLISECOND = Nanos(1_000_000)


class RequestId(NamedTuple):
    """Made by the ingress; what a client sends as id is only a label."""

    ingress: Epoch
    counter: int


class SequenceId(NamedTuple):
    """One choice of a request."""

    request: RequestId
    choice: int


class TransferId(NamedTuple):
    """One copy of blocks from one rank to another; made by control."""

    control: Epoch
    counter: int


class Role(Enum):
    __hash__ = object.__hash__  # part of every key by peer; Enum's own is Python code
    INGRESS = "ingress"
    CONTROL = "control"
    WORKER = "worker"


class Peer(NamedTuple):
    """The process at the other end of a link, in one of its lives. Only workers have a rank; others say 0."""

    role: Role
    rank: Rank
    epoch: Epoch
