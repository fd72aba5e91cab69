"""Plays a trace in real time: each request when it is due, whatever the ones before are doing."""

import asyncio
from collections.abc import Callable

from lmpool.bench.load.endpoint import Ask, Endpoint, Said, Told
from lmpool.bench.load.measured import Measured
from lmpool.core.ids import MILLISECOND, SECOND, Nanos
from lmpool.sim.arrivals import Arrivals
from lmpool.sim.trace import Part, Trace

PROBE_NS = Nanos(10 * MILLISECOND)
"""How often the client looks whether it comes to its own events in time."""
HISTORY_FAULT = "history"
LENGTH_FAULT = "output length"


class Player:
    """One run over one trace. `now` is the clock of every reading; `on_end` is called once for each request."""

    def __init__(
        self,
        trace: Trace,
        endpoint: Endpoint,
        now: Callable[[], Nanos],
        on_end: Callable[[Measured], None],
        *,
        is_forced: bool,
    ) -> None:
        """`is_forced`: an answer has the length of the trace; otherwise it may end by itself before."""
        self._trace = trace
        self._endpoint = endpoint
        self._now = now
        self._on_end = on_end
        self._is_forced = is_forced
        self._arrivals = Arrivals(trace)
        self._said: dict[int, Said | None] = {}
        """By request that has ended; None: it failed."""
        self._ends: dict[int, asyncio.Event] = {}
        self._left = sum(request.at_ns is not None for request in trace.requests)
        self._freed_ns = Nanos(0)
        self._changed = asyncio.Event()
        self._measured: list[Measured] = []
        self.stalls_ns: list[int] = []
        """How late each look of the client at its own clock was."""

    async def run(self, begin_ns: Nanos) -> list[Measured]:
        """`begin_ns`: the trace's time 0. Answers in the order of the trace."""
        self._freed_ns = begin_ns
        probe = asyncio.create_task(self._probe())
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                await self._send_all(begin_ns)
        finally:
            probe.cancel()
        return sorted(self._measured, key=lambda one: one.number)

    async def _send_all(self, begin_ns: Nanos) -> None:
        while self._left:
            at_ns = self._arrivals.next_ns
            if at_ns is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            planned_ns = Nanos(max(begin_ns + at_ns, self._freed_ns)) if self._is_bounded else Nanos(begin_ns + at_ns)
            await self._sleep_until(planned_ns)
            self._left -= 1
            self._start(self._arrivals.take(), planned_ns)

    @property
    def _is_bounded(self) -> bool:
        return self._trace.in_flight_max is not None or bool(self._trace.requests[-1].stage)

    def _start(self, number: int, planned_ns: Nanos) -> None:
        self._group.create_task(self._play(number, planned_ns))

    async def _play(self, number: int, planned_ns: Nanos) -> None:
        before = self._trace.requests[number].continues
        if before is not None and before not in self._said:
            # Recorded arrivals may come before the answer that they continue: then that answer is what they wait for.
            await self._ends.setdefault(before, asyncio.Event()).wait()
            planned_ns = max(planned_ns, self._now())
        ask = self._ask(number)
        if ask is None:
            self._end(_unsent(number, self._trace, planned_ns), None)
            return
        await self._sleep_until(planned_ns)
        told = await self._endpoint.ask(ask)
        self._end(self._told(number, planned_ns, told), told.said)

    def _ask(self, number: int) -> Ask | None:
        """None: an answer that it needs is not there."""
        request = self._trace.requests[number]
        turns: list[tuple[Part, ...]] = [request.parts]
        answers: list[Said] = []
        before = request.continues
        while before is not None:
            said = self._said[before]
            if said is None:
                return None
            answers.append(said)
            turns.append(self._trace.requests[before].parts)
            before = self._trace.requests[before].continues
        return Ask(request.session, tuple(reversed(turns)), tuple(reversed(answers)), request.output_tokens)

    def _end(self, measured: Measured, said: Said | None) -> None:
        number = measured.number
        self._measured.append(measured)
        self._said[number] = said if measured.is_success else None
        was_waiting = self._arrivals.next_ns is None
        for follower in self._arrivals.end(number):
            self._start(follower, Nanos(measured.closed_ns + self._trace.requests[follower].pause_ns))
        if was_waiting and self._arrivals.next_ns is not None:
            self._freed_ns = measured.closed_ns
        self._changed.set()
        if number in self._ends:
            self._ends.pop(number).set()
        self._on_end(measured)

    def _told(self, number: int, planned_ns: Nanos, told: Told) -> Measured:
        request = self._trace.requests[number]
        fault, detail, tokens, wanted = told.fault, told.detail, told.output_tokens, request.output_tokens
        if not fault and tokens is not None and (tokens > wanted or (self._is_forced and tokens < wanted)):
            fault, detail = LENGTH_FAULT, f"{tokens} tokens instead of {wanted}"
        return Measured(
            number=number,
            session=request.session,
            planned_ns=planned_ns,
            sent_ns=told.sent_ns,
            pieces=told.pieces,
            closed_ns=self._now(),
            prompt_tokens=told.prompt_tokens,
            cached_tokens=told.cached_tokens,
            output_tokens=tokens,
            wanted_tokens=wanted,
            fault=fault,
            detail=detail,
            request=told.request,
            queued_ns=told.queued_ns,
        )

    async def _sleep_until(self, moment: Nanos) -> None:
        left = moment - self._now()
        if left > 0:
            await asyncio.sleep(left / SECOND)

    async def _probe(self) -> None:
        while True:
            due = self._now() + PROBE_NS
            await asyncio.sleep(PROBE_NS / SECOND)
            self.stalls_ns.append(max(self._now() - due, 0))


def _unsent(number: int, trace: Trace, planned_ns: Nanos) -> Measured:
    request = trace.requests[number]
    return Measured(
        number=number,
        session=request.session,
        planned_ns=planned_ns,
        sent_ns=None,
        pieces=(),
        closed_ns=planned_ns,
        prompt_tokens=None,
        cached_tokens=None,
        output_tokens=None,
        wanted_tokens=request.output_tokens,
        fault=HISTORY_FAULT,
        detail=f"request {request.continues}, which it continues, failed",
    )
