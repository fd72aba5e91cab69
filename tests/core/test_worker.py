"""The worker machine, one rule at a time, with steps one and two in flight."""

import pytest

from lmpool.core.ids import Nanos
from tests.core.worker_world import DRAWN, World, prompt_of


@pytest.fixture(params=[1, 2])
def in_flight(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_tokens_are_those_of_a_request_alone(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight)
    submits = [
        world.submit(1, prompt_of(20, 1)),
        world.submit(2, prompt_of(200, 2), length=20),
        world.submit(3, prompt_of(5, 3), length=1, sampling=DRAWN),
    ]
    world.run(40)
    world.assert_complete(*submits)
    world.assert_idle()


def test_a_report_comes_as_a_sign_of_life() -> None:
    world = World()
    due = world.worker.next_deadline()
    before = world.version
    world.tick(due - world.now - 2_000_000)
    assert world.version == before
    world.tick(2_000_000)
    assert world.version == before + 1
    assert world.worker.next_deadline() == Nanos(world.now + world.settings.report_interval_ns)
