"""Whose turn it is on a connection, and when a client has lost it."""

import attrs

from lmpool.io.http.patience import LOOK_S, PATIENCE_S, Patience


@attrs.define(eq=False)
class Client:
    owed: int | None = 0
    latest: object = None
    is_cut: bool = False

    def cut(self) -> None:
        self.is_cut = True


def look_for(patience: Patience, client: Client, began_s: float, seconds: float) -> float:
    """Until the client is cut or the time is over; how long it took."""
    now_s = began_s
    while now_s < began_s + seconds and not client.is_cut:
        now_s += LOOK_S
        patience.look(now_s)
    return now_s - began_s


def watched(**facts: object) -> tuple[Patience, Client]:
    patience, client = Patience(), Client(**facts)  # type: ignore[arg-type]
    patience.begin(client)
    return patience, client


def test_who_asks_nothing_or_takes_nothing_is_cut_after_the_patience() -> None:
    for owed in (0, 70_000):
        patience, client = watched(owed=owed)
        assert PATIENCE_S <= look_for(patience, client, 0, 1_000) <= PATIENCE_S + 2 * LOOK_S
        assert client.is_cut


def test_who_waits_for_the_server_may_wait_for_ever() -> None:
    patience, client = watched(owed=None)
    look_for(patience, client, 0, 100_000)
    assert not client.is_cut


def test_who_takes_a_little_is_not_cut_and_who_stops_is() -> None:
    patience, client = watched(owed=70_000)
    now_s = 0.0
    for _ in range(50):
        now_s += look_for(patience, client, now_s, PATIENCE_S - 2 * LOOK_S)
        assert client.owed is not None
        client.owed -= 1
    assert not client.is_cut
    look_for(patience, client, now_s, PATIENCE_S + 2 * LOOK_S)
    assert client.is_cut


def test_who_asks_again_and_again_is_not_cut_though_no_look_sees_it_asking() -> None:
    patience, client = watched()
    for number in range(100):
        client.latest = ("request", number)
        patience.look(number * LOOK_S)
    assert not client.is_cut


def test_the_turn_of_the_server_begins_the_time_anew() -> None:
    patience, client = watched()
    now_s = look_for(patience, client, 0, PATIENCE_S - LOOK_S)
    client.owed = None
    patience.look(now_s)
    client.owed = 0
    look_for(patience, client, now_s, PATIENCE_S - LOOK_S)
    assert not client.is_cut


def test_a_connection_that_has_ended_is_forgotten() -> None:
    patience, client = watched()
    patience.end(client)
    patience.end(client)
    assert len(patience) == 0
    look_for(patience, client, 0, 1_000)
    assert not client.is_cut
