"""One machine, one alarm, no re-entrance, and nothing after a fault."""

import asyncio

import attrs
import pytest
from typing_extensions import override

from lmpool.core.events import Tick
from lmpool.core.ids import SECOND, Nanos
from lmpool.io.clock import monotonic_now
from lmpool.io.driver import Driver
from tests.io.loops import Run, on_both_loops


@attrs.define
class Ladder:
    """Answers each number with all below it, and a tick with -1 and one less for each deadline that it leaves."""

    deadlines: list[Nanos]
    ticks: list[tuple[Nanos, Nanos | None]] = attrs.field(factory=list)
    """When, and the deadline that was next."""

    def handle(self, now: Nanos, event: int | Tick) -> list[int]:
        match event:
            case Tick():
                self.ticks.append((now, self.next_deadline()))
                self.deadlines = [deadline for deadline in self.deadlines if deadline > now]
                return [-1 - len(self.deadlines)]
            case _:
                assert event >= 0
                return list(range(event))

    def next_deadline(self) -> Nanos | None:
        return min(self.deadlines, default=None)


@on_both_loops
def test_effects_are_performed_in_order_before_feed_returns(run: Run) -> None:
    async def body() -> None:
        performed: list[int] = []
        driver = Driver(Ladder([]), monotonic_now, performed.append)
        driver.feed(3)
        assert performed == [0, 1, 2]
        driver.feed(1)
        assert performed == [0, 1, 2, 0]
        driver.close()

    run(body())


@on_both_loops
def test_each_deadline_brings_a_tick_that_is_not_early(run: Run) -> None:
    async def body() -> None:
        now = monotonic_now()
        deadlines = [Nanos(now + wait * 1_000_000) for wait in (12, 3, 7)]
        ladder = Ladder(deadlines)
        rung = asyncio.get_running_loop().create_future()
        driver = Driver(ladder, monotonic_now, lambda effect: rung.set_result(None) if effect == -1 else None)
        driver.feed(0)
        await asyncio.wait_for(rung, 20)
        assert all(deadline is not None and tick >= deadline for tick, deadline in ladder.ticks)
        driver.close()

    run(body())


@on_both_loops
def test_a_deadline_that_comes_nearer_moves_the_alarm(run: Run) -> None:
    async def body() -> None:
        ladder = Ladder([Nanos(monotonic_now() + 1000 * SECOND)])
        rung = asyncio.get_running_loop().create_future()
        driver = Driver(ladder, monotonic_now, lambda effect: rung.set_result(None) if effect == -2 else None)
        driver.feed(0)
        ladder.deadlines.append(Nanos(monotonic_now() + 1_000_000))
        driver.feed(0)
        await asyncio.wait_for(rung, 20)
        driver.close()

    run(body())


@on_both_loops
def test_a_deadline_that_stays_in_the_past_leaves_the_loop_its_turns(run: Run) -> None:
    class Late(Ladder):
        @override
        def next_deadline(self) -> Nanos | None:
            return Nanos(1)

    async def body() -> None:
        late = Late([])
        driver = Driver(late, monotonic_now, lambda effect: None)
        driver.feed(0)
        turns = 0
        while len(late.ticks) < 5:
            await asyncio.sleep(0)
            turns += 1
        assert turns > 5
        driver.close()

    run(body())


@on_both_loops
def test_feeding_from_within_an_effect_is_a_fault(run: Run) -> None:
    async def body() -> None:
        driver: Driver[int, int] = Driver(Ladder([]), monotonic_now, lambda step: driver.feed(step + 1))
        driver.feed(2)
        with pytest.raises(AssertionError, match="was fed while"):
            await driver.fault

    run(body())


@on_both_loops
def test_after_a_fault_nothing_is_fed_any_more(run: Run) -> None:
    async def body() -> None:
        performed: list[int] = []
        driver = Driver(Ladder([Nanos(1)]), monotonic_now, performed.append)
        driver.feed(-1)
        driver.feed(3)
        assert performed == []
        with pytest.raises(AssertionError):
            await driver.fault

    run(body())


@on_both_loops
def test_a_closed_driver_feeds_nothing(run: Run) -> None:
    async def body() -> None:
        performed: list[int] = []
        driver = Driver(Ladder([]), monotonic_now, performed.append)
        driver.close()
        driver.feed(3)
        assert performed == []

    run(body())
