"""How many requests of one moment are begun before the loop turns, and who need not wait."""

import asyncio

import attrs
import pytest

from lmpool.io.http.turnstile import SLICE_S, Turnstile

pytestmark = pytest.mark.anyio

POST = b"POST /v1/completions HTTP/1.1\r\n"
GET = b"GET /livez HTTP/1.1\r\n"


@attrs.define
class World:
    """Letting somebody in takes 0.4 of a slice, so three go in one turn."""

    seconds: float = 0.0
    passed: list[str] = attrs.Factory(list)

    def clock(self) -> float:
        return self.seconds


@attrs.define
class Client:
    name: str
    world: World
    is_open: bool = True
    is_held: bool = False

    def hold(self) -> None:
        self.is_held = True

    def let_in(self, data: bytes) -> None:
        self.is_held = False
        self.world.seconds += 0.4 * SLICE_S
        self.world.passed.append(self.name)


async def test_a_turn_lets_in_what_fits_in_its_slice_and_the_rest_in_order() -> None:
    world = World()
    turnstile = Turnstile(asyncio.get_running_loop(), world.clock)
    clients = [Client(str(number), world) for number in range(8)]
    for client in clients:
        turnstile.come(client, POST)
    assert world.passed == ["0", "1", "2"]
    assert [client.is_held for client in clients] == [False] * 3 + [True] * 5
    await asyncio.sleep(0)
    assert world.passed == ["0", "1", "2", "3", "4", "5"]
    await asyncio.sleep(0)
    assert world.passed == [str(number) for number in range(8)]
    assert turnstile.waiting == 0


async def test_a_probe_passes_those_who_wait() -> None:
    world = World()
    turnstile = Turnstile(asyncio.get_running_loop(), world.clock)
    for number in range(5):
        turnstile.come(Client(str(number), world), POST)
    turnstile.come(Client("probe", world), GET)
    assert world.passed == ["0", "1", "2", "probe"]


async def test_who_comes_in_a_later_turn_waits_behind_those_who_wait() -> None:
    world = World()
    turnstile = Turnstile(asyncio.get_running_loop(), world.clock)
    for number in range(8):
        turnstile.come(Client(str(number), world), POST)
    await asyncio.sleep(0)
    turnstile.come(Client("late", world), POST)
    for _ in range(3):
        await asyncio.sleep(0)
    assert world.passed == [*(str(number) for number in range(8)), "late"]


async def test_who_has_left_while_waiting_is_past() -> None:
    world = World()
    turnstile = Turnstile(asyncio.get_running_loop(), world.clock)
    clients = [Client(str(number), world) for number in range(5)]
    for client in clients:
        turnstile.come(client, POST)
    clients[3].is_open = False
    await asyncio.sleep(0)
    assert world.passed == ["0", "1", "2", "4"]


async def test_after_a_quiet_turn_nobody_waits() -> None:
    world = World()
    turnstile = Turnstile(asyncio.get_running_loop(), world.clock)
    for round_ in range(4):
        turnstile.come(Client(str(round_), world), POST)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert world.passed == ["0", "1", "2", "3"]
    assert turnstile.waiting == 0
