"""Drives one core machine on an event loop: events in, effects out, one alarm."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from lmpool.core.events import Tick
from lmpool.core.ids import MILLISECOND, Nanos
from lmpool.core.machine import Machine

Event = TypeVar("Event")
Effect = TypeVar("Effect")


class Driver(Generic[Event, Effect]):
    """Synchronous, so that no half-applied state is ever visible. Must be made and fed on a running event loop."""

    def __init__(
        self, machine: Machine[Event, Effect], clock: Callable[[], Nanos], perform: Callable[[Effect], None]
    ) -> None:
        self._machine = machine
        self._clock = clock
        self._perform = perform
        self._loop = asyncio.get_running_loop()
        self._feeding = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = Nanos(0)
        self.fault: asyncio.Future[None] = self._loop.create_future()
        """Fails with the first exception that the machine or `perform` let out. Its owner awaits it and ends."""

    def feed(self, event: Event | Tick) -> None:
        """Hands the event to the machine and performs its effects. `perform` never feeds.

        After a fault the machine's state means nothing: nothing is fed any more, and `fault` tells why.
        """
        if self.fault.done():
            return
        assert not self._feeding, f"{type(event).__name__} was fed while effects are performed"
        self._feeding = True
        try:
            for effect in self._machine.handle(self._clock(), event):
                self._perform(effect)
            self._set_alarm()
        except Exception as error:
            self.fault.set_exception(error)
            self._stop_alarm()
        finally:
            self._feeding = False

    def close(self) -> None:
        """No more ticks and no more events."""
        self.fault.cancel()
        self._stop_alarm()

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _set_alarm(self) -> None:
        """An alarm that is earlier than the deadline stays: it is set again when it rings."""
        deadline = self._machine.next_deadline()
        if deadline is None or (self._alarm is not None and self._alarm_at <= deadline):
            return
        self._stop_alarm()
        # At least a millisecond (the grain of uvloop's timers): a machine may leave a deadline in the past while it
        # waits for a step, and must not spin meanwhile.
        wait_ms = max(1, -((self._clock() - deadline) // MILLISECOND))
        self._alarm_at = deadline
        self._alarm = self._loop.call_later(wait_ms / 1000, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        deadline = self._machine.next_deadline()
        if deadline is not None and deadline <= self._clock():
            self.feed(Tick())
        else:
            self._set_alarm()
