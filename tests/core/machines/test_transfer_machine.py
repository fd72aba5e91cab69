"""Random histories of transfers among three ranks: messages lost, repeated and out of order, late and failed copies,
yields, cuts, crashes of every party, and blocks that are reused all the while. Every law after every event."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from typing_extensions import override

from lmpool.core.ids import MILLISECOND, StepNumber
from lmpool.core.messages.transfer import CopyMeans, TransferDenial, TransferMode
from lmpool.core.prefix import HASH_BYTES
from tests.core.transfer_world import ANSWER_NS, LIFE_NS, TransferWorld, chain_of

RANKS = 3
RANK = st.integers(0, RANKS - 1)
CHAINS = [chain_of(1, 2, 3, 4, 5, 6), chain_of(1, 2, 3, 7, 8, 9), chain_of(5, 6, 7)]
CHAIN = st.sampled_from(CHAINS)
LENGTH = st.integers(1, 6)
SELDOM = st.sampled_from([False, False, False, False, False, True])


def head(chain: bytes, blocks: int) -> bytes:
    return chain[: blocks * HASH_BYTES]


class TransferMachine(RuleBasedStateMachine):
    @initialize(is_orderly=st.booleans())
    def start(self, is_orderly: bool) -> None:
        self.world = TransferWorld(RANKS)
        self.is_orderly = is_orderly
        """Whether links keep order and lose nothing, as real ones do."""
        for rank, chain in ((0, CHAINS[0]), (0, CHAINS[1]), (1, CHAINS[2])):
            self.world.stations[rank].store(chain)

    @rule(
        source=RANK,
        to=RANK,
        chain=CHAIN,
        blocks=LENGTH,
        known=st.integers(0, 2),
        mode=st.sampled_from(TransferMode),
        means=st.sampled_from(CopyMeans),
        lease=st.sampled_from([0, 0, 700 * MILLISECOND]),
        wish=st.sampled_from([True, True, True, False]),
    )
    def begin(
        self,
        source: int,
        to: int,
        chain: bytes,
        blocks: int,
        known: int,
        mode: TransferMode,
        means: CopyMeans,
        lease: int,
        *,
        wish: bool,
    ) -> None:
        """`wish`: what one has and another lacks, if there is such a thing."""
        chain = head(chain, blocks)
        if wish:
            depths = [station.depth(chain) for station in self.world.stations]
            source, to = depths.index(max(depths)), depths.index(min(depths))
            chain = head(chain, max(depths[source], 1))
        first = min(known, self.world.stations[to].depth(chain))
        begun = self.world.begin(source, to, chain, first=first, mode=mode, means=means, lease_ns=lease)
        if source == to:
            assert begun in (TransferDenial.SAME_RANK, TransferDenial.RANK_ABSENT)

    @rule(mode=st.sampled_from(TransferMode), means=st.sampled_from(CopyMeans), chain=CHAIN, rounds=st.integers(1, 5))
    def begin_and_go_on(self, mode: TransferMode, means: CopyMeans, chain: bytes, rounds: int) -> None:
        """As it usually goes, or a part of that."""
        self.begin(0, 1, chain, 6, 0, mode, means, 0, wish=True)
        self.go_on(rounds)

    # Links

    @rule(rank=RANK, to_worker=st.booleans(), place=st.integers(0, 3), fate=st.sampled_from("aaaaaaal2"))
    def deliver(self, rank: int, to_worker: bool, place: int, fate: str) -> None:
        """One message arrives, is lost, or arrives and is still under way."""
        world = self.world
        queue = world.to_worker[rank] if to_worker else world.to_control[rank]
        if not queue or world.stations[rank].is_asleep:
            return
        place = 0 if self.is_orderly else place % len(queue)
        message = queue[place]
        if self.is_orderly or fate != "2":
            del queue[place]
        if self.is_orderly or fate != "l":
            if to_worker:
                world.hear(rank, message)  # type: ignore[arg-type]
            else:
                world.answer(rank, message)  # type: ignore[arg-type]

    @rule()
    def deliver_all(self) -> None:
        """In order, to whoever is awake."""
        for rank, station in enumerate(self.world.stations):
            if not station.is_asleep:
                self.world.deliver(rank)

    @rule(rounds=st.integers(1, 4))
    def go_on(self, rounds: int) -> None:
        """All is well for a while."""
        for _ in range(rounds):
            self.deliver_all()
            self.run_drivers()

    @rule(rank=RANK, to_worker=st.booleans())
    def deliver_first(self, rank: int, to_worker: bool) -> None:
        self.deliver(rank, to_worker, 0, "a")

    @precondition(lambda self: self.world.heard)
    @rule(data=st.data(), rank=RANK)
    def repeat(self, data: st.DataObject, rank: int) -> None:
        """Whatever was heard before, by whomever: nothing changes but answers, unless it is new to this rank."""
        order = data.draw(st.sampled_from(self.world.heard[-12:]))
        exchange = self.world.stations[rank].exchange
        if self.world.stations[rank].is_asleep:
            return
        if exchange.side(order.transfer) is None and not exchange.remembers(order.transfer):
            return
        if order not in self.world.told_to(rank):
            return
        before = exchange.digest_parts()[:-1], exchange.published
        self.world.hear(rank, order)
        assert (exchange.digest_parts()[:-1], exchange.published) == before

    @rule(rank=RANK, really=SELDOM)
    def cut(self, rank: int, really: bool) -> None:
        if really:
            self.world.cut(rank)

    @rule(rank=RANK)
    def link(self, rank: int) -> None:
        self.world.link(rank)

    @rule(rank=RANK, really=SELDOM)
    def crash(self, rank: int, really: bool) -> None:
        if really:
            self.world.crash(rank)

    @rule(really=SELDOM)
    def crash_control(self, really: bool) -> None:
        if really:
            self.world.crash_control()

    # Driver

    @rule(rank=RANK, blocks=st.integers(1, 6), end=st.sampled_from(["", "", "complete", "fail"]))
    def copy(self, rank: int, blocks: int, end: str) -> None:
        """Of all that a rank copies: some blocks more, and perhaps the end, well, too early, or with a failure."""
        for transfer in list(self.world.stations[rank].copies):
            self.world.move_bytes(rank, transfer, blocks)
            if end == "complete":
                self.world.end_copy(rank, transfer)
            elif end == "fail":
                self.world.fail_copy(rank, transfer)

    @rule(rank=RANK, blocks=st.integers(1, 6), ends=st.booleans())
    def send(self, rank: int, blocks: int, ends: bool) -> None:
        for transfer in list(self.world.stations[rank].sendings):
            self.world.read_bytes(rank, transfer, blocks)
            if ends:
                self.world.end_sending(rank, transfer)

    @rule()
    def run_drivers(self) -> None:
        for rank in range(RANKS):
            self.world.run_driver(rank)

    # Time and blocks

    @rule(milliseconds=st.sampled_from([1, 20, 110, 300, 900, 900]))
    def pass_time(self, milliseconds: int) -> None:
        self.world.pass_time(milliseconds * MILLISECOND)

    @rule(rank=RANK, is_asleep=SELDOM)
    def sleep(self, rank: int, is_asleep: bool) -> None:
        station = self.world.stations[rank]
        station.is_asleep = is_asleep
        if not is_asleep:
            self.world.pass_time(0)

    @rule(rank=RANK, really=SELDOM)
    def yield_blocks(self, rank: int, really: bool) -> None:
        if really:
            self.world.yield_blocks(rank)

    @rule(rank=RANK, chain=CHAIN, blocks=LENGTH, really=SELDOM)
    def compute(self, rank: int, chain: bytes, blocks: int, really: bool) -> None:
        if really:
            self.world.stations[rank].compute(head(chain, blocks))

    @rule(rank=RANK, kind=st.integers(10, 90), blocks=st.integers(4, 26))
    def compute_something_else(self, rank: int, kind: int, blocks: int) -> None:
        """Whose blocks were somebody else's: what is reclaimed is overwritten."""
        station = self.world.stations[rank]
        if station.compute(chain_of(*range(kind, kind + blocks))):
            station.pool.release(station.tables.pop(), StepNumber(0))

    @rule(rank=RANK)
    def end_sequence(self, rank: int) -> None:
        if self.world.stations[rank].tables:
            self.world.stations[rank].end_sequence()

    @rule(rank=RANK, really=SELDOM)
    def clear(self, rank: int, really: bool) -> None:
        if really:
            self.world.stations[rank].pool.clear()

    @precondition(lambda self: self.world.said)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        answer = data.draw(st.sampled_from(self.world.said[-6:]))
        self.world.transfers.cancel(self.world.now, answer.transfer)
        self.world.after_control()

    @invariant()
    def laws(self) -> None:
        self.world.check()

    @override
    def teardown(self) -> None:
        """Whatever happened: once all is delivered and every deadline has passed, nothing is left."""
        if not hasattr(self, "world"):
            return
        world = self.world
        for rank, station in enumerate(world.stations):
            station.is_asleep = False
            world.link(rank)
        world.pass_time(0)
        for _ in range(3):
            world.settle()
            for rank, station in enumerate(world.stations):
                for transfer in list(station.copies):
                    world.end_copy(rank, transfer)
                for transfer in list(station.sendings):
                    world.end_sending(rank, transfer)
            world.pass_time(LIFE_NS + ANSWER_NS)
        world.assert_at_rest()


TestTransferMachine = TransferMachine.TestCase
