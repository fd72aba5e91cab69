"""Random histories of a worker that takes part in transfers: every token is still that of a request alone."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from typing_extensions import override

from lmpool.core.effects import CancelCopy, CopyBlocks, SendBlocks
from lmpool.core.events import BlocksCopied, BlocksSent, CopyFailed, Received, SendFailed
from lmpool.core.ids import MILLISECOND, SECOND, BlockId, Epoch, Generation, Nanos, Rank, TransferId
from lmpool.core.messages.transfer import (
    AbortTransfer,
    Awaited,
    BeginCopy,
    BeginSend,
    Confirm,
    CopyMeans,
    Finalize,
    PrepareSource,
    PrepareTarget,
    Publish,
    TransferMode,
    TransferOrder,
)
from tests.core.integer_runner import value_after
from tests.core.machines.test_worker_machine import WorkerMachine
from tests.core.worker_world import CONTROL, make_submit, prompt_of

SIZE = 8
KIND = st.integers(1, 3)
BLOCKS = st.integers(1, 6)
NUMBER = st.integers(0, 3)
LIFE = st.sampled_from([5 * MILLISECOND, 200 * MILLISECOND, SECOND])


def chain_of(kind: int, blocks: int) -> bytes:
    return make_submit(0, prompt_of(blocks * SIZE, kind)).chain


def values_of(kind: int, blocks: int) -> list[int]:
    """Keys and values of a prompt's positions."""
    values: list[int] = []
    for token in prompt_of(blocks * SIZE, kind):
        values.append(value_after(values[-1] if values else 0, token))
    return values


class WorkerTransferMachine(WorkerMachine):
    """The driver is wrong only where it says so, or where nobody will look."""

    @override
    def __init__(self) -> None:
        super().__init__()
        self.transfers: dict[TransferId, tuple[int, int]] = {}
        """Kind and blocks of each chain."""
        self.open: list[CopyBlocks | SendBlocks] = []
        """What the driver has not answered."""
        self.taken = 0

    def tell(self, order: TransferOrder) -> None:
        self.world.feed(Received(CONTROL, order))
        self.take_effects()

    def take_effects(self) -> None:
        for effect in self.world.copies[self.taken :]:
            if not isinstance(effect, CancelCopy):
                self.open.append(effect)
        self.taken = len(self.world.copies)

    def number(self, number: int) -> TransferId | None:
        """One of the latest."""
        latest = list(self.transfers)[-4:]
        return latest[number % len(latest)] if latest else None

    def new(self, kind: int, blocks: int) -> TransferId:
        transfer = TransferId(CONTROL.epoch, len(self.transfers))
        self.transfers[transfer] = kind, blocks
        return transfer

    @rule(kind=KIND, blocks=BLOCKS, life=LIFE, awaits=st.booleans())
    def arrive(self, kind: int, blocks: int, life: int, awaits: bool) -> None:
        transfer, deadline = self.new(kind, blocks), Nanos(self.world.now + life)
        if awaits:
            self.submit_and_wait(transfer, life)
        self.tell(PrepareTarget(transfer, CopyMeans.READ, Rank(1), Epoch(1), chain_of(kind, blocks), 0, deadline))

    @precondition(lambda self: self.transfers)
    @rule(number=NUMBER, life=LIFE)
    def wait_for_one(self, number: int, life: int) -> None:
        transfer = self.number(number)
        assert transfer is not None
        self.submit_and_wait(transfer, life)

    def submit_and_wait(self, transfer: TransferId, life: int) -> None:
        world, (kind, blocks) = self.world, self.transfers[transfer]
        self.counter += 1
        awaited = Awaited(transfer, blocks, Nanos(world.now + life))
        world.submit(self.counter, prompt_of(blocks * SIZE + 5, kind), length=6, arrived_ns=world.now, awaits=awaited)
        self.take_effects()

    @rule(kind=KIND, blocks=st.integers(1, 2), life=LIFE, mode=st.sampled_from(TransferMode))
    def leave(self, kind: int, blocks: int, life: int, mode: TransferMode) -> None:
        transfer, deadline = self.new(kind, blocks), Nanos(self.world.now + life)
        self.tell(PrepareSource(transfer, mode, Rank(1), Epoch(1), chain_of(kind, blocks), 0, deadline))

    @precondition(lambda self: self.transfers)
    @rule(number=NUMBER)
    def begin_copy(self, number: int) -> None:
        transfer = self.number(number)
        assert transfer is not None
        blocks = self.transfers[transfer][1]
        for count in range(1, blocks + 1):  # as many as it lacked
            self.tell(BeginCopy(transfer, (BlockId(0),) * count, (Generation(1),) * count))

    @precondition(lambda self: self.transfers)
    @rule(number=NUMBER, kind=st.sampled_from([BeginSend, Confirm, Publish, Finalize, AbortTransfer]))
    def order(self, number: int, kind: Any) -> None:
        transfer = self.number(number)
        further = {BeginSend: (0,), Publish: (self.world.now + 100 * MILLISECOND,)}.get(kind, ())
        self.tell(kind(transfer, *further))

    @precondition(lambda self: self.transfers)
    @rule(number=NUMBER)
    def bring(self, number: int) -> None:
        """The rest of a transfer, if it still goes on."""
        self.begin_copy(number)
        while self.open:
            self.end_copy("good")
        self.order(number, Publish)

    @precondition(lambda self: self.open)
    @rule(how=st.sampled_from(["good", "good", "failed", "short"]))
    def end_copy(self, how: str) -> None:
        world, effect = self.world, self.open.pop(0)
        transfer = effect.transfer
        if isinstance(effect, SendBlocks):
            world.feed(BlocksSent(transfer) if how == "good" else SendFailed(transfer, "made to fail"))
        elif how == "good":
            kind, blocks = self.transfers[transfer]
            self.write(effect, values_of(kind, blocks)[(blocks - len(effect.target_blocks)) * SIZE :])
            world.feed(BlocksCopied(transfer, len(effect.target_blocks), 1))
        else:
            self.write(effect, [-1] * SIZE * len(effect.target_blocks))
            count = len(effect.target_blocks) - 1
            world.feed(CopyFailed(transfer, "made to fail") if how == "failed" else BlocksCopied(transfer, count, 1))
        self.take_effects()

    def write(self, copy: CopyBlocks, values: list[int]) -> None:
        for index, value in enumerate(values):
            self.world.runner.memory[copy.target_blocks[index // SIZE], index % SIZE] = value

    @override
    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.take_effects()
        while self.open:
            self.end_copy("failed")
        self.world.tick(61 * SECOND)
        super().teardown()


TestWorkerTransferMachine = WorkerTransferMachine.TestCase
