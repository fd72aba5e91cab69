"""The ingress of one process: its machine, its links to control and workers, and who waits for what.

It takes no decision. Requests are submitted with a function that takes their deliveries; queries are futures.
"""

import asyncio
import os
from collections.abc import Callable
from itertools import count
from typing import TypeAlias, assert_never

import attrs

from lmpool.core.effects import (
    AnswerQuery,
    CloseRequest,
    DeliverPromptLogprobs,
    DeliverStart,
    DeliverToken,
    IngressEffect,
    Outcome,
    Send,
)
from lmpool.core.events import (
    ClientGone,
    DrainOrdered,
    IngressEvent,
    PeerJoined,
    PeerLost,
    Received,
    RequestArrived,
    StopFound,
)
from lmpool.core.history import History
from lmpool.core.ids import MILLISECOND, SECOND, Epoch, Nanos, Peer, Rank, RequestId, Role, TransferId
from lmpool.core.ingress import Ingress, IngressSettings, IngressSnapshot
from lmpool.core.limits import ROUTE_ATTEMPTS_MAX
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_control import (
    Decision,
    DecisionsAsked,
    DecisionsReported,
    StateAsked,
    StateReported,
)
from lmpool.core.messages.ingress_worker import CacheCleared, ClearCache
from lmpool.core.messages.transfer import CopyMeans, TransferAsked, TransferDecided
from lmpool.core.messages.worker_control import DrainBegun, WorkerJoined
from lmpool.core.search import PROBE, SearchSettings
from lmpool.io.clock import monotonic_now
from lmpool.io.driver import Driver
from lmpool.io.errors import BadRequest, NoReplica, TransferDenied
from lmpool.io.link import LINK_BOUNDS, Identity, LinkEvent, Links, control_address, worker_address
from lmpool.io.log import get_log
from lmpool.io.transfer_order import TransferWish

ROUTE_WAIT_NS = SECOND
"""Three times what a new control takes to settle; one that is stopped costs each request this much once."""
REPLICA_WAIT_NS = Nanos(120 * SECOND)
"""A replica that is started again loads its model meanwhile."""
RETRY_NS = Nanos(250 * MILLISECOND)
ABORT_WAIT_NS = Nanos(2 * SECOND)
"""Several steps, even of a slow CPU."""
BUSY_RETRY_NS = SECOND
HOMES_MAX = 65_536
"""Sessions of a few hours of a busy server, in about 10 MB."""
QUERY_WAIT_S = 5.0
ENDING = "The server is ending."

_log = get_log("ingress")

Delivery: TypeAlias = DeliverStart | DeliverToken | DeliverPromptLogprobs | CloseRequest
Deliver: TypeAlias = Callable[[Delivery], None]
"""Takes deliveries in order, `CloseRequest` last. May call `stop` and `cancel`, and must not raise."""


@attrs.frozen
class IngressPlace:
    """Which run, and which ingress of it."""

    run: str
    run_folder: str
    epoch: Epoch
    replicas: int
    block_size: int
    requests_max: int
    """Open requests, choices counted."""


class IngressAdapter:
    """Must be made on a running event loop; `close` it on the same one."""

    def __init__(self, place: IngressPlace) -> None:
        self.place = place
        self._loop = asyncio.get_running_loop()
        machine = Ingress(_settings(place), monotonic_now())
        self._machine = machine
        self._driver: Driver[IngressEvent, IngressEffect] = Driver(machine, monotonic_now, self._perform)
        self._driver.fault.add_done_callback(self._fail)
        identity = Identity(place.run, Peer(Role.INGRESS, Rank(0), place.epoch), os.getuid())
        self._links = Links(identity, LINK_BOUNDS, self._hear)
        self._counter = count(1)
        self._takers: dict[int, Deliver] = {}
        """Of open requests, by counter."""
        self._queries: dict[tuple[Peer, int], asyncio.Future[Message]] = {}
        self._query_numbers = count(PROBE + 1)
        self._control: Peer | None = None
        self._workers: dict[Peer, WorkerJoined] = {}
        self._draining: dict[Peer, None] = {}
        self._left_out: dict[Peer, None] = {}
        self._facts: WorkerJoined | None = None
        """Of the first that joined in this life."""
        self._changed = asyncio.Event()

    @property
    def fault(self) -> "asyncio.Future[None]":
        """Fails when the machine does; then nothing works any more, and all requests have been closed."""
        return self._driver.fault

    @property
    def is_ready(self) -> bool:
        """Whether a replica is linked that takes requests."""
        return any(peer not in self._draining for peer in self._workers)

    @property
    def tokens_max(self) -> int | None:
        """Longest context in force: what every replica can hold. None before the first has joined."""
        if not self._workers:
            return None if self._facts is None else self._facts.model_tokens_max
        return min(facts.model_tokens_max for facts in self._workers.values())

    @property
    def namespace_base(self) -> bytes | None:
        """Of all replicas; control refuses one that differs. None before the first has joined."""
        return None if self._facts is None else self._facts.namespace_base

    def dial(self) -> None:
        """Links to control and to every worker, now and each time that a link is lost."""
        folder = self.place.run_folder
        self._links.dial(control_address(folder), Role.CONTROL, Rank(0))
        for rank in map(Rank, range(self.place.replicas)):
            self._links.dial(worker_address(folder, rank), Role.WORKER, rank)

    async def all_linked(self) -> None:
        """Waits until control and every replica are linked."""
        while self._control is None or len(self._workers) < self.place.replicas:
            await self._changed.wait()

    async def any_joined(self, seconds: float) -> None:
        """Waits until some replica has joined in this life. Raises NoReplica after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while self._facts is None:
                    await self._changed.wait()
        except TimeoutError:
            raise NoReplica("No replica has come up yet.") from None

    def new_request(self) -> RequestId:
        return RequestId(self.place.epoch, next(self._counter))

    def submit(self, arrived: RequestArrived, deliver: Deliver) -> None:
        """`deliver` may be called before this returns."""
        assert arrived.request.counter not in self._takers
        if self._driver.fault.done():
            deliver(CloseRequest(arrived.request, Outcome.DRAINING, ENDING, Nanos(0)))
            return
        self._takers[arrived.request.counter] = deliver
        self._feed(arrived)

    def stop(self, request: RequestId, choice: int, output_index: int) -> None:
        """A stop string was completed by the text of that output."""
        self._loop.call_soon(self._feed, StopFound(request, choice, output_index))

    def cancel(self, request: RequestId) -> None:
        """Nothing is delivered any more; the machine keeps the request until its worker has let it go.

        Harmless after the request's end, and any number of times.
        """
        if self._takers.get(request.counter, _nobody) is not _nobody:
            self._takers[request.counter] = _nobody
            self._loop.call_soon(self._feed, ClientGone(request))

    def drain(self) -> None:
        """Nothing new is taken."""
        self._feed(DrainOrdered())

    async def pool_state(self) -> StateReported:
        """Raises NoReplica while control does not answer."""
        number = next(self._query_numbers)
        answer = await self._ask(self._control, StateAsked(number), number)
        assert isinstance(answer, StateReported)
        return answer

    async def decisions(self, requests: tuple[RequestId, ...] | None, limit: int) -> tuple[Decision, ...]:
        """The newest first; of some requests, or all. Raises NoReplica while control does not answer."""
        number = next(self._query_numbers)
        answer = await self._ask(self._control, DecisionsAsked(number, requests, limit), number)
        assert isinstance(answer, DecisionsReported)
        return answer.decisions

    async def transfer(self, wish: TransferWish, chain: bytes) -> TransferId:
        """Begins it. Raises BadRequest, TransferDenied, and NoReplica while control does not answer."""
        for param, rank in (("source", wish.source), ("target", wish.target)):
            if rank >= self.place.replicas:
                text = f"There is no rank {rank}: ranks are 0 to {self.place.replicas - 1}."
                raise BadRequest(text, param, "invalid_value")
        number, source, target = next(self._query_numbers), Rank(wish.source), Rank(wish.target)
        copy_ns = Nanos(round(wish.copy_s * SECOND))
        asked = TransferAsked(number, source, target, wish.mode, CopyMeans.READ, chain, 0, copy_ns, Nanos(0))
        answer = await self._ask(self._control, asked, number)
        assert isinstance(answer, TransferDecided)
        if answer.transfer is None:
            assert answer.denial is not None
            raise TransferDenied(f"The transfer was not begun: {answer.denial.value}.")
        return answer.transfer

    async def clear_cache(self) -> int:
        """Blocks that were dropped, over all replicas. Raises NoReplica if one of them does not answer."""
        number = next(self._query_numbers)
        blocks = 0
        for answer in await asyncio.gather(*(self._ask(peer, ClearCache(number), number) for peer in self._workers)):
            assert isinstance(answer, CacheCleared)
            blocks += answer.blocks
        return blocks

    def history(self, request: RequestId) -> History | None:
        """None for one that is unknown or forgotten."""
        return self._machine.history(request)

    def requests_of(self, tenant: str) -> tuple[RequestId, ...]:
        """Those that have a history."""
        return self._machine.requests_of(tenant)

    def snapshot(self) -> IngressSnapshot:
        return self._machine.snapshot()

    async def close(self) -> None:
        """Closes all requests here, then the links, by which workers learn that they are gone."""
        self._close_all(Outcome.DRAINING, ENDING)
        self._driver.close()
        await self._links.close()

    async def _ask(self, peer: Peer | None, question: Message, number: int) -> Message:
        """The answer with that number. Raises NoReplica."""
        if peer is None:
            raise NoReplica("The control process is not linked.")
        answer: asyncio.Future[Message] = self._loop.create_future()
        self._queries[peer, number] = answer
        try:
            self._links.send(peer, question)
            async with asyncio.timeout(QUERY_WAIT_S):
                return await answer
        except TimeoutError:
            raise NoReplica(f"The process {peer.role.value} {peer.rank} does not answer.") from None
        finally:
            del self._queries[peer, number]

    def _feed(self, event: IngressEvent) -> None:
        self._driver.feed(event)

    def _hear(self, event: LinkEvent) -> None:
        match event:
            case PeerJoined(peer=peer):
                if peer.role is Role.CONTROL:
                    self._control = peer
            case PeerLost(peer=peer):
                self._forget(peer)
            case Received(peer=peer, message=WorkerJoined() as facts):
                if not self._is_of_the_pool(facts):
                    self._leave_out(peer)
                    return
                self._workers[peer] = facts
                self._facts = self._facts or facts
            case Received(peer=peer, message=DrainBegun()):
                self._draining[peer] = None
            case Received():
                self._feed(event)
                return
            case _:
                assert_never(event)
        self._feed(event)
        self._tell_change()

    def _is_of_the_pool(self, facts: WorkerJoined) -> bool:
        """Whether its blocks are those of the first that joined, by which all chains are made."""
        first = self._facts or facts
        return (facts.namespace_base, facts.block_size) == (first.namespace_base, first.block_size)

    def _leave_out(self, peer: Peer) -> None:
        """It is never asked; said once."""
        if peer not in self._left_out:
            self._left_out[peer] = None
            _log.warning("a replica of another model is left out", rank=peer.rank)

    def _forget(self, peer: Peer) -> None:
        if peer == self._control:
            self._control = None
        self._workers.pop(peer, None)
        self._draining.pop(peer, None)
        self._left_out.pop(peer, None)
        for (asked, _), answer in self._queries.items():
            if asked == peer and not answer.done():
                answer.set_exception(NoReplica(f"The process {peer.role.value} {peer.rank} was lost."))

    def _tell_change(self) -> None:
        """Wakes those who wait now, and only those."""
        self._changed.set()
        self._changed.clear()

    def _perform(self, effect: IngressEffect) -> None:
        match effect:
            case DeliverToken() | DeliverStart() | DeliverPromptLogprobs():
                self._takers[effect.request.counter](effect)
            case Send(peer=peer, message=message):
                self._links.send(peer, message)
            case CloseRequest(request=request):
                self._takers.pop(request.counter)(effect)
            case AnswerQuery(peer=peer, message=message):
                self._answer(peer, message)
            case _:
                assert_never(effect)

    def _answer(self, peer: Peer, message: Message) -> None:
        assert isinstance(message, StateReported | DecisionsReported | CacheCleared | TransferDecided)
        answer = self._queries.get((peer, message.number))
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _fail(self, fault: "asyncio.Future[None]") -> None:
        if not fault.cancelled() and fault.exception() is not None:
            self._close_all(Outcome.FAILED, "The server failed; its log says why.")

    def _close_all(self, outcome: Outcome, detail: str) -> None:
        takers, self._takers = self._takers, {}
        for counter, deliver in takers.items():
            deliver(CloseRequest(RequestId(self.place.epoch, counter), outcome, detail, Nanos(0)))


def _nobody(_: Delivery) -> None:
    """Of a client that has gone."""


def _settings(place: IngressPlace) -> IngressSettings:
    search = SearchSettings(
        replicas=place.replicas,
        block_size=place.block_size,
        attempts_max=ROUTE_ATTEMPTS_MAX,
        route_wait_ns=ROUTE_WAIT_NS,
        replica_wait_ns=REPLICA_WAIT_NS,
        retry_ns=RETRY_NS,
        busy_retry_ns=BUSY_RETRY_NS,
        routes_degraded=True,
        homes_max=HOMES_MAX,
    )
    return IngressSettings(place.epoch, place.requests_max, ABORT_WAIT_NS, search)
