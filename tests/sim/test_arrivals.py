import attrs
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.ids import MILLISECOND, Nanos
from lmpool.sim.arrivals import Arrivals
from lmpool.sim.replay import Replay, make_prompts
from lmpool.sim.trace import Trace
from tests.sim.racks import RACK, asked, continued, trace


def _bounded(in_flight_max: int, *stages: int) -> Trace:
    requests = [attrs.evolve(asked(0, (number, 20)), stage=stage) for number, stage in enumerate(stages)]
    return attrs.evolve(trace(*requests), in_flight_max=in_flight_max)


def test_an_open_loop_request_comes_at_its_time_whatever_is_under_way() -> None:
    arrivals = Arrivals(trace(asked(0, (0, 5)), asked(40, (1, 5))))
    assert arrivals.take() == 0
    assert arrivals.next_ns == Nanos(40 * MILLISECOND)
    assert arrivals.take() == 1
    assert arrivals.next_ns is None


def test_a_bound_in_flight_makes_the_next_one_wait_for_an_end() -> None:
    arrivals = Arrivals(_bounded(2, 0, 0, 0))
    assert [arrivals.take(), arrivals.take()] == [0, 1]
    assert arrivals.next_ns is None
    assert arrivals.end(1) == []
    assert arrivals.next_ns == 0
    assert arrivals.take() == 2


def test_a_stage_waits_for_the_last_of_the_one_before() -> None:
    arrivals = Arrivals(_bounded(8, 0, 0, 1))
    assert [arrivals.take(), arrivals.take()] == [0, 1]
    arrivals.end(1)
    assert arrivals.next_ns is None
    arrivals.end(0)
    assert arrivals.next_ns == 0


def test_a_turn_takes_the_room_of_the_one_that_it_follows() -> None:
    made = attrs.evolve(trace(asked(0, (0, 5)), continued(0, 1.0, (1, 5)), asked(0, (2, 5))), in_flight_max=1)
    arrivals = Arrivals(made)
    assert arrivals.take() == 0
    assert arrivals.end(0) == [1]
    assert arrivals.next_ns is None
    assert arrivals.end(1) == []
    assert arrivals.next_ns == 0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12).map(sorted), st.integers(1, 4), st.randoms())
def test_every_request_comes_once_and_no_rule_is_broken(stages: list[int], bound: int, chance: object) -> None:
    arrivals, under_way, ended = Arrivals(_bounded(bound, *stages)), [], 0
    while ended < len(stages):
        if arrivals.next_ns is not None:
            number = arrivals.take()
            assert ended >= sum(stage < stages[number] for stage in stages)
            under_way.append(number)
            assert len(under_way) <= bound
        else:
            arrivals.end(under_way.pop(chance.randrange(len(under_way))))  # type: ignore[attr-defined]
            ended += 1


def test_the_simulated_front_keeps_the_bound_and_the_stages() -> None:
    made = _bounded(2, 0, 0, 0, 0, 1, 1)
    replay = Replay(made, make_prompts(made, 16), RACK, "round-robin", 0)
    while replay.advance(10):
        pass
    times = replay.front.times
    moments = sorted({moment for request in times for moment in (request.arrived_ns, request.ended_ns)})
    under_way = [sum(request.arrived_ns <= moment < request.ended_ns for request in times) for moment in moments]
    assert max(under_way) == 2
    assert min(request.arrived_ns for request in times[4:]) == max(request.ended_ns for request in times[:4])
    assert replay.figures().unserved == 0
