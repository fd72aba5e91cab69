import threading
from queue import SimpleQueue

import pytest

from lmpool.gpu.paths.copy_thread import CopyEnd, CopyThread
from lmpool.gpu.paths.port import Copied, CopyCancelled, CopyOrder, CopyWatch, PathError
from tests.gpu.paths.pools import order

pytestmark = pytest.mark.model


class Path:
    """Copies when it is let go; fails for the counters in `failing`."""

    def __init__(self) -> None:
        self.begun: SimpleQueue[tuple[int, int]] = SimpleQueue()
        self.go = threading.Semaphore(0)
        self.failing: tuple[int, ...] = ()
        self.error: Exception = PathError("broken")

    def copy(self, order: CopyOrder, watch: CopyWatch) -> Copied:
        self.begun.put(order.transfer)
        while not self.go.acquire(timeout=0.01):
            if watch.is_cancelled():
                raise CopyCancelled("cancelled")
        if order.transfer[1] in self.failing:
            raise self.error
        return Copied(order.transfer[1], None)

    def close(self) -> None:
        pass


class Rig:
    def __init__(self) -> None:
        self.path = Path()
        self.ended: SimpleQueue[tuple[tuple[int, int], CopyEnd]] = SimpleQueue()
        self.thread = CopyThread("copies", lambda transfer, end: self.ended.put((transfer, end)))

    def begin(self, counter: int) -> None:
        self.thread.begin(self.path, order([0], [0], counter=counter))

    def next_end(self) -> tuple[int, CopyEnd]:
        transfer, end = self.ended.get(timeout=20)
        return transfer[1], end


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.parametrize("error", [PathError("broken"), RuntimeError("CUDA out of memory")])
def test_copies_run_one_after_the_other_and_a_failure_ends_only_its_own(rig: Rig, error: Exception) -> None:
    rig.path.failing = (2,)
    rig.path.error = error
    for counter in (1, 2, 3):
        rig.begin(counter)
    rig.path.go.release(3)
    ends = [rig.next_end() for _ in range(3)]
    assert [counter for counter, _ in ends] == [1, 2, 3]
    assert ends[0][1] == Copied(1, None)
    assert isinstance(ends[1][1], PathError)
    assert str(error) in str(ends[1][1])
    assert ends[2][1] == Copied(3, None)


def test_a_running_and_a_waiting_copy_can_be_cancelled(rig: Rig) -> None:
    rig.begin(1)
    rig.begin(2)
    assert rig.path.begun.get(timeout=20) == (7, 1)
    rig.thread.cancel((7, 2))
    rig.thread.cancel((7, 1))
    assert [(counter, type(end)) for counter, end in (rig.next_end(), rig.next_end())] == [
        (1, CopyCancelled),
        (2, CopyCancelled),
    ]
    assert rig.path.begun.empty()


def test_repeats_and_unknown_ids_change_nothing(rig: Rig) -> None:
    rig.thread.cancel((7, 1))
    rig.begin(1)
    rig.begin(1)
    rig.path.go.release(2)
    assert rig.next_end() == (1, Copied(1, None))
    rig.thread.cancel((7, 1))
    rig.begin(2)
    assert rig.next_end() == (2, Copied(2, None))
    assert rig.ended.empty()


def test_the_end_cancels_what_runs_and_waits_for_the_thread(rig: Rig) -> None:
    rig.begin(1)
    rig.begin(2)
    rig.thread.end(20)
    assert isinstance(rig.next_end()[1], CopyCancelled)
    assert isinstance(rig.next_end()[1], CopyCancelled)
