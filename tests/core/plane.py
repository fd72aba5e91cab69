"""A control plane with hand-fed peers, for tests."""

from collections.abc import Mapping
from hashlib import blake2b

import attrs

from lmpool.core.control import ControlPlane, ControlSettings
from lmpool.core.effects import ControlEffect
from lmpool.core.events import ControlEvent, PeerJoined, PeerLost, Received, Tick
from lmpool.core.ids import MILLISECOND, SECOND, Epoch, Nanos, Peer, Rank, RequestId, Role, Version
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_control import (
    BookingEnded,
    Busy,
    Decision,
    DecisionsAsked,
    DecisionsReported,
    RouteAsked,
    RouteDecided,
    StateAsked,
    StateReported,
    Unroutable,
)
from lmpool.core.messages.worker_control import NOTHING_DONE, FullReport, Load, Report, ReportWanted, WorkerJoined
from lmpool.core.rates import Rates

BLOCK_SIZE = 16
RATES = Rates(step=2e6, prefill=1e5, prefill_context=2.0, decode=2e5, decode_context=10.0)
IDLE = Load(
    blocks_free=1_000,
    blocks_cached=0,
    waiting=0,
    waiting_tokens=0,
    prefilling=0,
    prefilling_tokens=0,
    decoding=0,
    decoding_context=0,
    step_began_ns=None,
    step_cost_ns=Nanos(0),
)
FACTS = WorkerJoined(
    namespace_base=b"base",
    block_size=BLOCK_SIZE,
    blocks=1_000,
    model_tokens_max=8_192,
    step_tokens_max=512,
    sequences_max=64,
    rates=RATES,
)
SETTINGS = ControlSettings(
    policy="marginal-time",
    replicas=2,
    wait_max_ns=Nanos(20 * SECOND),
    suspect_after_ns=Nanos(3 * SECOND),
    settle_ns=Nanos(300 * MILLISECOND),
    report_wait_ns=SECOND,
    booking_ns=Nanos(10 * SECOND),
    bookings_max=1_000,
    waiting_routes_max=16,
    sweep_hashes=64,
    decisions_kept=64,
    transfer_answer_ns=SECOND,
    placement=None,
)
INGRESS = Peer(Role.INGRESS, Rank(0), Epoch(1))
CONTROL_EPOCH = Epoch(1)


def chain(*runs: tuple[str, int]) -> bytes:
    """Packed hashes: a run of so many blocks under each label. Chains that begin alike share their beginning."""
    digest, hashes = b"", []
    for label, blocks in runs:
        for index in range(blocks):
            digest = blake2b(digest + f"{label} {index}".encode(), digest_size=16).digest()
            hashes.append(digest)
    return b"".join(hashes)


def worker(rank: int, epoch: int) -> Peer:
    return Peer(Role.WORKER, Rank(rank), Epoch(epoch))


def request(counter: int) -> RequestId:
    return RequestId(INGRESS.epoch, counter)


def question(counter: int, blocks: bytes, prompt_tokens: int) -> RouteAsked:
    return RouteAsked(
        request=request(counter),
        attempt=0,
        chain=blocks,
        namespace=bytes(16),
        prompt_tokens=prompt_tokens,
        output_tokens_max=128,
        choices=1,
        session="",
        priority=0,
        arrived_ns=Nanos(0),
        deadline_ns=None,
        excluded=(),
        draw=0,
    )


def report(version: int, load: Load) -> Report:
    return Report(
        version=Version(version),
        added=b"",
        removed=b"",
        accepted=(),
        ended=(),
        prefill_requests=(),
        prefill_tokens=(),
        load=load,
        rates=RATES,
        totals=NOTHING_DONE,
    )


class Plane:
    """Drives one `ControlPlane` and keeps what it sends."""

    def __init__(self, settings: ControlSettings) -> None:
        self.now = Nanos(0)
        self.machine = ControlPlane(settings, CONTROL_EPOCH, self.now)
        self.sent: list[ControlEffect] = []
        self.loads: dict[int, Load] = {}
        self.versions: dict[int, int] = {}
        self.epochs: dict[int, int] = {}

    def feed(self, event: ControlEvent) -> list[Message]:
        effects = self.machine.handle(self.now, event)
        self.sent += effects
        self.machine.audit()
        return [effect.message for effect in effects]

    def pass_time(self, ns: int) -> list[Message]:
        """To the instant itself, through every deadline in between."""
        end = Nanos(self.now + ns)
        messages: list[Message] = []
        for _ in range(10_000):
            deadline = self.machine.next_deadline()
            if deadline is None or deadline > end:
                break
            self.now = max(deadline, self.now)
            messages += self.feed(Tick())
        self.now = end
        return messages + self.feed(Tick())

    def connect(self) -> None:
        self.feed(PeerJoined(INGRESS))

    def join(self, rank: int, epoch: int, facts: WorkerJoined) -> None:
        self.epochs[rank], self.loads[rank] = epoch, IDLE
        self.feed(PeerJoined(worker(rank, epoch)))
        self.tell(rank, facts)

    def report_fully(self, rank: int, version: int, held: bytes, live: Mapping[RequestId, int]) -> list[Message]:
        self.versions[rank] = version
        return self.tell(
            rank,
            FullReport(
                Version(version), 0, 1, held, tuple(live), tuple(live.values()), self.loads[rank], RATES, NOTHING_DONE
            ),
        )

    def bring(self, rank: int, held: bytes) -> None:
        """A live rank of epoch 1 that holds these blocks."""
        self.join(rank, 1, FACTS)
        self.report_fully(rank, 1, held, {})

    def lose(self, rank: int) -> None:
        self.feed(PeerLost(worker(rank, self.epochs[rank])))

    def tell(self, rank: int, message: Message) -> list[Message]:
        return self.feed(Received(worker(rank, self.epochs[rank]), message))

    def report(
        self,
        rank: int,
        *,
        added: bytes = b"",
        removed: bytes = b"",
        accepted: tuple[RequestId, ...] = (),
        ended: tuple[RequestId, ...] = (),
        prefill: Mapping[RequestId, int] | None = None,
        load: Load | None = None,
    ) -> list[Message]:
        self.versions[rank] += 1
        if load is not None:
            self.loads[rank] = load
        left = prefill or {}
        return self.tell(
            rank,
            attrs.evolve(
                report(self.versions[rank], self.loads[rank]),
                added=added,
                removed=removed,
                accepted=accepted,
                ended=ended,
                prefill_requests=tuple(left),
                prefill_tokens=tuple(left.values()),
            ),
        )

    def ask(self, asked: RouteAsked) -> RouteDecided | Busy | Unroutable:
        answers = [
            message
            for message in self.feed(Received(INGRESS, asked))
            if isinstance(message, RouteDecided | Busy | Unroutable)
        ]
        (answer,) = answers
        assert (answer.request, answer.attempt) == (asked.request, asked.attempt)
        return answer

    def route(self, counter: int, blocks: bytes, prompt_tokens: int) -> int:
        """The rank that a request is sent to."""
        answer = self.ask(question(counter, blocks, prompt_tokens))
        assert isinstance(answer, RouteDecided)
        return answer.rank

    def end(self, counter: int, attempt: int) -> None:
        self.feed(Received(INGRESS, BookingEnded(request(counter), attempt)))

    def decision(self) -> Decision:
        """The newest."""
        (message,) = self.feed(Received(INGRESS, DecisionsAsked(7, None, 1)))
        assert isinstance(message, DecisionsReported)
        return message.decisions[0]

    def state(self) -> StateReported:
        (message,) = self.feed(Received(INGRESS, StateAsked(3)))
        assert isinstance(message, StateReported)
        return message

    def wanted(self) -> int:
        """How often a full report was asked for."""
        return sum(isinstance(effect.message, ReportWanted) for effect in self.sent)


def ready_plane(settings: ControlSettings, *held: bytes) -> Plane:
    """One live rank for each of the arguments, which say what it holds."""
    plane = Plane(attrs.evolve(settings, replicas=len(held)))
    plane.connect()
    for rank, blocks in enumerate(held):
        plane.bring(rank, blocks)
    return plane
