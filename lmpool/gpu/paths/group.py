"""Payloads between the two processes of a pair: a gloo or NCCL group of two, made without torch's world group.

So a pair lives and ends alone, whatever other replicas do. The two meet at a file in a folder that only they can
read. Gloo goes through the loopback device. NCCL is written from torch's documentation and was not run on hardware
yet.
"""

import os
import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import distributed
from torch.distributed.distributed_c10d import ProcessGroupGloo, Store, Work

from lmpool.gpu.paths.deadline import Deadline
from lmpool.gpu.paths.port import CopyRefused, PathError, PathKind

SOURCE, TARGET = 0, 1
"""Ranks in the group."""
MEET_S = 10.0
LOOK_S = 50e-6
"""NCCL's work has no wait with an end, so it is looked at this often."""
NCCL_SETTINGS = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
"""By default torch's watchdog ends the process when a payload is late; here a late payload ends its transfer."""


class _Backend(Protocol):
    """What torch's backends have in common here."""

    def send(self, tensors: list[torch.Tensor], dstRank: int, tag: int) -> Work: ...  # noqa: N803 (torch's)
    def recv(self, tensors: list[torch.Tensor], srcRank: int, tag: int) -> Work: ...  # noqa: N803
    def abort(self) -> None: ...


class PairGroup:
    def __init__(self, kind: PathKind, meeting: Path, own: int, stream: torch.cuda.Stream | None) -> None:
        """Waits for the other end; `stream` is what payloads are ordered with. Raises PathError."""
        self._kind = kind
        self._other = TARGET if own == SOURCE else SOURCE
        self._stream = stream
        self._meeting = meeting
        self._has_met = False
        """A payload has got through, so both ends have read all they want from the file: NCCL reads it only then."""
        self._works: deque[Work] = deque()
        """Begun and not finished. Nobody else holds one, or the group would live as long as that."""
        try:
            store = distributed.FileStore(str(meeting), 2)  # type: ignore[attr-defined]
            store.set_timeout(timedelta(seconds=MEET_S))
            self._backend: _Backend = _gloo(store, own) if kind is PathKind.GLOO else _nccl(store, own)
        except RuntimeError as error:
            raise PathError(f"the ends of a {kind.value} pair have not met: {_first_line(error)}") from error

    @property
    def pending(self) -> int:
        """Payloads begun and not finished."""
        return len(self._works)

    def begin_send(self, packed: torch.Tensor) -> None:
        """`packed` must stay as it is until it is finished. Raises PathError."""
        with self._ordered():
            try:
                self._works.append(self._backend.send([packed], self._other, 0))
            except RuntimeError as error:
                raise PathError(f"{self._kind.value} cannot send: {_first_line(error)}") from error

    def begin_receive(self, packed: torch.Tensor) -> None:
        """Raises PathError."""
        with self._ordered():
            try:
                self._works.append(self._backend.recv([packed], self._other, 0))
            except RuntimeError as error:
                raise PathError(f"{self._kind.value} cannot receive: {_first_line(error)}") from error

    def finish(self, deadline: Deadline) -> None:
        """The oldest payload. Raises PathError; then the group is of no more use."""
        try:
            if self._kind is PathKind.GLOO:
                self._works[0].wait(deadline.left())
            else:
                while not self._works[0].is_completed():
                    deadline.check()
                    time.sleep(LOOK_S)
                self._works[0].wait()
        except RuntimeError as error:
            raise PathError(f"{self._kind.value} lost the payload: {_first_line(error)}") from error
        self._works.popleft()
        if not self._has_met:
            self._has_met = True
            self._meeting.unlink(missing_ok=True)

    def close(self) -> None:
        """The other end finds out at once."""
        if self._kind is PathKind.NCCL:
            with suppress(RuntimeError):  # an abort of what is broken
                self._backend.abort()
        self._works.clear()
        del self._backend
        self._meeting.unlink(missing_ok=True)

    def _ordered(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def has_nccl() -> bool:
    return distributed.is_nccl_available()


def _gloo(store: Store, own: int) -> Any:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=MEET_S)
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._threads = 1
    return ProcessGroupGloo(store, own, 2, options)


def _nccl(store: Store, own: int) -> Any:
    if not has_nccl():
        raise CopyRefused(f"torch {torch.__version__} is built without NCCL")
    from torch.distributed.distributed_c10d import ProcessGroupNCCL  # noqa: PLC0415 (not in CPU builds)

    for name, value in NCCL_SETTINGS.items():
        os.environ.setdefault(name, value)
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=MEET_S)
    return ProcessGroupNCCL(store, own, 2, options)


def _first_line(error: RuntimeError) -> str:
    """Torch appends a trace of C++ to some."""
    return str(error).strip().splitlines()[0]
