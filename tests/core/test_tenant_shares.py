"""Tenants beside each other: who finds a place, and who waits behind whom."""

import attrs
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.effects import Outcome
from lmpool.core.events import ClientGone
from lmpool.core.limits import PRIORITY_MAX
from lmpool.core.tenant_shares import FREE_FACTOR, TenantShares
from tests.core.front import SETTINGS, W0, Front, arrival, ready_front, request

PLACES = 64
WIDE = attrs.evolve(SETTINGS, requests_max=PLACES)


def flooded(*tenants: str) -> Front:
    """Each asks in turn, far more often than there are places."""
    front = ready_front(WIDE)
    for number in range(2 * PLACES):
        front.feed(arrival(number + 1, tenant=tenants[number % len(tenants)]))
    return front


def open_of(front: Front, tenant: str) -> int:
    requests = front.machine.requests_of(tenant)
    return sum(history.outcome is None for request in requests if (history := front.machine.history(request)))


def test_one_tenant_alone_has_the_whole_server() -> None:
    assert open_of(flooded("red"), "red") == PLACES


def test_a_newcomer_finds_a_place_beside_a_flood() -> None:
    front = ready_front(WIDE)
    front.feed(arrival(1000, tenant="blue"))
    for number in range(2 * PLACES):
        front.feed(arrival(number + 1, tenant="red"))
    assert open_of(front, "red") < PLACES * FREE_FACTOR / (FREE_FACTOR + 1)
    front.feed(arrival(1001, tenant="blue"))
    assert (open_of(front, "blue"), front.outcome(1001)) == (2, None)


def test_while_nothing_is_under_way_whatever_fits_is_taken() -> None:
    front = ready_front(WIDE)
    for number, tenant in enumerate(("red", "blue"), 1):
        front.feed(arrival(number, tenant=tenant))
        front.feed(ClientGone(request(number)))
    front.feed(arrival(3, tenant="blue", choices=PLACES))
    assert (front.outcome(3), front.machine.snapshot().choices) == (None, PLACES)


def test_tenants_that_all_want_more_end_with_equal_parts() -> None:
    front = flooded("red", "blue", "green")
    counts = [open_of(front, tenant) for tenant in ("red", "blue", "green")]
    assert max(counts) - min(counts) <= 1
    assert sum(counts) >= PLACES - FREE_FACTOR


def test_a_refusal_for_want_of_a_share_says_so() -> None:
    front = flooded("red", "blue")
    front.feed(arrival(999, tenant="red"))
    assert front.outcome(999) is Outcome.BUSY
    assert "of them are yours" in front.closed[999].detail


def test_a_flood_waits_behind_whoever_asks_now_and_then() -> None:
    front = ready_front(WIDE)
    for number in range(10):
        front.feed(arrival(number + 1, tenant="red", priority=2))
    assert front.asked().priority == 2
    front.feed(arrival(20, tenant="blue", priority=2))
    assert front.asked().priority == 2
    front.feed(arrival(21, tenant="red", priority=2))
    asked = front.asked()
    assert asked.priority == 3
    front.decide(asked, W0)
    assert front.submitted()[1].priority == 3
    front.feed(arrival(22, tenant="red", priority=PRIORITY_MAX))
    assert front.asked().priority == PRIORITY_MAX


def test_places_come_back_with_every_end() -> None:
    front = flooded("red", "blue")
    for counter in range(1, 2 * PLACES + 1):
        front.feed(ClientGone(request(counter)))
    assert open_of(front, "red") == open_of(front, "blue") == 0
    front.feed(arrival(5000, tenant="red"))
    assert open_of(front, "red") == 1


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 9), st.booleans()), max_size=60))
def test_there_is_always_a_place_for_a_new_tenant(steps: list[tuple[str, int, bool]]) -> None:
    """As many as there is room for beside `FREE_FACTOR` parts, once two have been seen."""
    shares = TenantShares()
    shares.see("a")
    shares.see("b")
    free = PLACES
    for tenant, choices, is_end in steps:
        if is_end and shares.of(tenant) >= choices:
            shares.change(tenant, -choices)
            free += choices
        elif shares.may_add(tenant, choices, free):
            shares.change(tenant, choices)
            free -= choices
            assert shares.of(tenant) <= FREE_FACTOR * free
        assert free > 0
        assert 0 <= shares.class_of(tenant, choices, 0) <= 1
