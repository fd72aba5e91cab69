"""What control counts of a rank's totals."""

import attrs
import pytest

from lmpool.core.events import Received
from lmpool.core.ids import Nanos
from lmpool.core.member import Feed
from lmpool.core.messages.ingress_control import RouteDecided
from lmpool.core.messages.worker_control import NOTHING_DONE
from tests.core.plane import FACTS, IDLE, INGRESS, RATES, SETTINGS, Plane, question, report


def test_each_count_begins_where_the_last_ended() -> None:
    feed = Feed(FACTS, RATES, None, None, None, NOTHING_DONE)
    assert feed.count(attrs.evolve(NOTHING_DONE, outputs=3, output_tokens=60)) == (3, 60)
    assert feed.count(attrs.evolve(NOTHING_DONE, outputs=4, output_tokens=80)) == (1, 20)
    assert feed.count(attrs.evolve(NOTHING_DONE, outputs=4, output_tokens=80)) == (0, 0)


@pytest.mark.parametrize(("outputs", "tokens"), [(0, 0), (10**15, 0), (0, 10**15)])
def test_totals_that_fall_are_nonsense_and_end_nothing(outputs: int, tokens: int) -> None:
    plane = Plane(SETTINGS)
    plane.connect()
    for rank in (0, 1):
        plane.bring(rank, b"")
    told = attrs.evolve(NOTHING_DONE, outputs=10**14, output_tokens=10**14)
    plane.tell(0, attrs.evolve(report(2, IDLE), totals=told))
    plane.tell(0, attrs.evolve(report(3, IDLE), totals=attrs.evolve(told, outputs=outputs, output_tokens=tokens)))
    plane.tell(0, attrs.evolve(report(4, IDLE), totals=NOTHING_DONE))
    plane.now = Nanos(plane.now + 1)
    (decided,) = plane.feed(Received(INGRESS, question(1, b"", 40)))
    assert isinstance(decided, RouteDecided)
