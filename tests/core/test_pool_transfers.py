"""Control and two workers, door to door: a transfer that is ordered serves the requests that are routed to it."""

import os
import subprocess
import sys
from collections import deque

import attrs
import pytest

from lmpool.core.control import ControlPlane
from lmpool.core.effects import CancelCopy, CopyBlocks, SendBlocks
from lmpool.core.events import BlocksCopied, BlocksSent, CopyFailed, PeerJoined, PeerLost, Received, Tick
from lmpool.core.ids import MILLISECOND, SECOND, Nanos, Peer, Rank, Role, TransferId
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_control import RouteDecided
from lmpool.core.messages.transfer import CopyMeans, TransferAsked, TransferDecided, TransferMode
from lmpool.core.prefix import chain_length
from tests.core.plane import SETTINGS, question
from tests.core.worker_world import CONTROL, INGRESS, World, prompt_of

SIZE = 8


class Pool:
    """Links that deliver at once and in order; one clock."""

    def __init__(self, ranks: int) -> None:
        self.control = ControlPlane(attrs.evolve(SETTINGS, replicas=ranks), CONTROL.epoch, Nanos(0))
        self.worlds = [World(rank=Rank(rank)) for rank in range(ranks)]
        self.told = [0] * ranks
        """Messages of each worker that control has heard."""
        self.performed = [0] * ranks
        self.is_up = [True] * ranks
        self.tell_control(PeerJoined(INGRESS))
        for rank in range(ranks):
            self.tell_control(PeerJoined(self.peer(rank)))
        self.go_on()

    def peer(self, rank: int) -> Peer:
        return Peer(Role.WORKER, Rank(rank), self.worlds[rank].settings.epoch)

    @property
    def now(self) -> Nanos:
        return max(world.now for world in self.worlds)

    def tell_control(self, event: PeerJoined | PeerLost | Received | Tick) -> list[Message]:
        """Answers what the ingress hears."""
        answers: list[Message] = []
        for effect in self.control.handle(self.now, event):
            if effect.peer == INGRESS:
                answers.append(effect.message)
            elif self.is_up[effect.peer.rank]:
                world = self.worlds[effect.peer.rank]
                world.now = self.now
                world.feed(Received(CONTROL, effect.message))
        self.control.audit()
        return answers

    def go_on(self) -> None:
        """Until nobody has anything to say or to copy."""
        for _ in range(20):
            for rank, world in enumerate(self.worlds):
                news = deque(message for peer, message in world.messages[self.told[rank] :] if peer == CONTROL)
                self.told[rank] = len(world.messages)
                while news:
                    message = news.popleft()
                    if self.is_up[rank]:
                        self.tell_control(Received(self.peer(rank), message))
                self.perform(rank)

    def perform(self, rank: int) -> None:
        world = self.worlds[rank]
        for effect in world.copies[self.performed[rank] :]:
            match effect:
                case CopyBlocks(transfer=transfer, target_blocks=targets, source=source):
                    memory = self.worlds[source].runner.memory
                    for here, there in zip(targets, effect.source_blocks, strict=True):
                        for offset in range(SIZE):
                            world.runner.memory[here, offset] = memory[there, offset]
                    world.feed(BlocksCopied(transfer, len(targets), 64 * len(targets)))
                case SendBlocks(transfer=transfer):
                    world.feed(BlocksSent(transfer))
                case CancelCopy():
                    pass
        self.performed[rank] = len(world.copies)

    def pass_time(self, ns: int) -> None:
        for world in self.worlds:
            world.now = Nanos(self.now + ns)
            world.feed(Tick())
        self.tell_control(Tick())
        self.go_on()

    def order(self, source: int, target: int, chain: bytes, mode: TransferMode, means: CopyMeans) -> TransferId:
        asked = TransferAsked(1, Rank(source), Rank(target), mode, means, chain, 0, SECOND, Nanos(0))
        (decided,) = self.tell_control(Received(INGRESS, asked))
        assert isinstance(decided, TransferDecided)
        assert decided.transfer is not None
        return decided.transfer

    def cut(self, rank: int) -> None:
        self.is_up[rank] = False
        self.tell_control(PeerLost(self.peer(rank)))
        self.worlds[rank].feed(PeerLost(CONTROL))

    def link(self, rank: int) -> None:
        self.is_up[rank] = True
        self.tell_control(PeerJoined(self.peer(rank)))
        self.worlds[rank].feed(PeerJoined(CONTROL))
        self.go_on()

    def holders(self, chain: bytes) -> list[int]:
        """Blocks of the chain that control knows each rank to hold."""
        ready: list[int] = []
        for rank in range(len(self.worlds)):
            others = tuple(Rank(other) for other in range(len(self.worlds)) if other != rank)
            asked = attrs.evolve(question(rank, chain, 61), excluded=others)
            answers = self.tell_control(Received(INGRESS, asked))
            (decided,) = [answer for answer in answers if isinstance(answer, RouteDecided)]
            ready.append(decided.ready_blocks)
        return ready


@pytest.fixture
def pool() -> Pool:
    """Rank 0 has computed a prompt."""
    pool = Pool(2)
    pool.worlds[0].submit(1, prompt_of(57, kind=1))
    pool.worlds[0].run(100)
    pool.go_on()
    return pool


CHAIN = World().submit(1, prompt_of(57, kind=1)).chain


@pytest.mark.parametrize("means", CopyMeans)
@pytest.mark.parametrize("mode", TransferMode)
def test_an_ordered_transfer_brings_its_blocks_and_control_knows_where_they_are(
    pool: Pool, mode: TransferMode, means: CopyMeans
) -> None:
    pool.order(0, 1, CHAIN, mode, means)
    pool.go_on()
    pool.pass_time(SECOND)
    snapshot = pool.control.snapshot()
    assert (snapshot.transfers, dict(snapshot.transfer_outcomes)["published"]) == (0, 1)
    assert pool.holders(CHAIN) == [0 if mode is TransferMode.MOVE else 7, 7]
    submit = pool.worlds[1].submit(2, prompt_of(57, kind=1))
    pool.worlds[1].run(100)
    pool.worlds[1].assert_complete(submit)
    assert pool.worlds[1].accepted[submit.request].cached_tokens == 56


@pytest.mark.parametrize("lost", [0, 1])
def test_a_link_that_is_cut_in_the_middle_leaves_nothing_on_either_side(pool: Pool, lost: int) -> None:
    pool.order(0, 1, CHAIN, TransferMode.COPY, CopyMeans.READ)
    pool.cut(lost)
    pool.go_on()
    pool.link(lost)
    pool.pass_time(10 * SECOND)
    assert pool.control.snapshot().transfers == 0
    assert dict(pool.control.snapshot().transfer_outcomes)["rank lost"] == 1
    assert pool.holders(CHAIN) == [7, 0]
    for world in pool.worlds:
        counts = world.worker.snapshot().blocks
        assert (counts.pinned, counts.reserved, counts.aborting) == (0, 0, 0)


def test_a_failed_copy_is_over_at_once_and_another_may_begin(pool: Pool) -> None:
    transfer = pool.order(0, 1, CHAIN, TransferMode.COPY, CopyMeans.READ)
    target = pool.worlds[1]
    for _ in range(3):
        for rank, world in enumerate(pool.worlds):
            for peer, message in world.messages[pool.told[rank] :]:
                if peer == CONTROL:
                    pool.tell_control(Received(pool.peer(rank), message))
            pool.told[rank] = len(world.messages)
    assert isinstance(target.copies[-1], CopyBlocks)
    pool.performed[1] = len(target.copies)
    target.feed(CopyFailed(transfer, "made to fail"))
    pool.go_on()
    assert pool.control.snapshot().transfers == 0
    pool.order(0, 1, CHAIN, TransferMode.COPY, CopyMeans.READ)
    pool.go_on()
    pool.pass_time(300 * MILLISECOND)
    assert pool.holders(CHAIN) == [7, 7]
    assert chain_length(CHAIN) == 7


SCRIPT = """
from lmpool.core.messages.transfer import CopyMeans, TransferMode
from tests.core.test_pool_transfers import CHAIN, Pool
from tests.core.worker_world import prompt_of
pool = Pool(3)
pool.worlds[0].submit(1, prompt_of(57, kind=1))
pool.worlds[0].run(100)
pool.go_on()
for target, mode in ((1, TransferMode.COPY), (2, TransferMode.MOVE)):
    pool.order(0, target, CHAIN, mode, CopyMeans.SEND)
    print(pool.control.digest().hex(), *(world.worker.digest().hex() for world in pool.worlds))
    pool.go_on()
    print(pool.control.digest().hex(), *(world.worker.digest().hex() for world in pool.worlds))
"""


def test_the_digests_do_not_depend_on_the_hash_seed() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.getcwd()},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    lines = outputs[0].splitlines()
    assert len(dict.fromkeys(lines)) == 4
