"""The thread on which a data path copies, beside the event loop and the thread of the steps."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

import attrs

from lmpool.gpu.paths.port import Copied, CopyCancelled, CopyOrder, CopyWatch, DataPath, PathError

CopyEnd: TypeAlias = Copied | PathError


@attrs.frozen
class _Copy:
    path: DataPath
    order: CopyOrder
    cancelled: threading.Event


class CopyThread:
    """Copies one order after the other. A daemon, so that a copy that hangs keeps no process alive."""

    def __init__(self, name: str, ended: Callable[[tuple[int, int], CopyEnd], None]) -> None:
        """`ended` is called on this thread, once for each order, also for those that were cancelled before."""
        self._ended = ended
        self._inbox: SimpleQueue[_Copy | None] = SimpleQueue()
        self._open: dict[tuple[int, int], _Copy] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def begin(self, path: DataPath, order: CopyOrder) -> None:
        """A transfer is begun once: while it is open, a repeat changes nothing."""
        copy = _Copy(path, order, threading.Event())
        with self._lock:
            if order.transfer in self._open:
                return
            self._open[order.transfer] = copy
        self._inbox.put(copy)

    def cancel(self, transfer: tuple[int, int]) -> None:
        """It ends soon, cancelled or, if it was just done, as copied; unknown ones are ordinary."""
        with self._lock:
            copy = self._open.get(transfer)
        if copy is not None:
            copy.cancelled.set()

    def end(self, wait_s: float) -> None:
        """Cancels all and waits for the thread."""
        with self._lock:
            for copy in self._open.values():
                copy.cancelled.set()
        self._inbox.put(None)
        self._thread.join(wait_s)

    def _main(self) -> None:
        while (copy := self._inbox.get()) is not None:
            outcome = _outcome(copy)
            with self._lock:
                del self._open[copy.order.transfer]
            self._ended(copy.order.transfer, outcome)


def _outcome(copy: _Copy) -> CopyEnd:
    if copy.cancelled.is_set():
        return CopyCancelled(f"transfer {copy.order.transfer} was cancelled before it began")
    try:
        return copy.path.copy(copy.order, CopyWatch(copy.cancelled.is_set, lambda _: None))
    except PathError as error:
        return error
    except Exception as error:  # of torch, say: out of memory
        return PathError(f"{type(error).__name__}: {error}")
