"""An ingress that speaks of requests that are not its own: nothing happens to them, and it is counted."""

import pytest

from lmpool.core.events import PeerJoined, Received
from lmpool.core.ids import Epoch, Peer, Rank, Role
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_control import BookingEnded, BookingsOffered, RouteDecided
from lmpool.core.messages.ingress_worker import Abort, FinishChoice
from tests.core.plane import SETTINGS, chain, question, ready_plane, request
from tests.core.worker_world import World, make_submit, prompt_of

STRANGER = Peer(Role.INGRESS, Rank(0), Epoch(77))


@pytest.mark.parametrize("role", [Role.INGRESS, Role.CONTROL])
def test_a_request_can_be_ended_and_replaced_by_its_own_ingress_alone(role: Role) -> None:
    world = World()
    submit = world.submit(1, prompt_of(40, 1), length=6)
    stranger = Peer(role, Rank(0), Epoch(77))
    world.feed(PeerJoined(stranger))
    words: list[Message] = [
        Abort(submit.request),
        FinishChoice(submit.request, 0, 0),
        make_submit(1, prompt_of(9, 2), attempt=5),
    ]
    for word in words:
        world.feed(Received(stranger, word))
    assert world.worker.snapshot().messages_stray == len(words)
    world.run(40)
    world.assert_complete(submit)


def test_a_booking_can_be_ended_asked_again_and_offered_by_its_own_ingress_alone() -> None:
    plane = ready_plane(SETTINGS, b"", b"")
    assert isinstance(plane.ask(question(1, chain(("a", 4)), 80)), RouteDecided)
    plane.feed(PeerJoined(STRANGER))
    before = plane.state()
    words: list[Message] = [
        BookingEnded(request(1), 9),
        question(1, chain(("b", 4)), 80),
        BookingsOffered((request(1), request(2)), (5, 0), (Rank(0), Rank(1)), (Epoch(1), Epoch(1)), (900, 900)),
    ]
    for word in words:
        assert plane.feed(Received(STRANGER, word)) == []
    after = plane.state()
    assert (after.bookings, [rank.booked for rank in after.ranks]) == (1, [rank.booked for rank in before.ranks])
    assert [rank.prefill_tokens for rank in after.ranks] == [rank.prefill_tokens for rank in before.ranks]
    assert after.stale_dropped == before.stale_dropped + 4
