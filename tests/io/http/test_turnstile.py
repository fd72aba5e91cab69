"""How many requests of one moment are begun before the loop turns, and who need not wait."""

import asyncio

import attrs
import pytest

from lmpool.io.http.turnstile import TURN_MAX, Turnstile

pytestmark = pytest.mark.anyio

POST = b"POST /v1/completions HTTP/1.1\r\n"
GET = b"GET /livez HTTP/1.1\r\n"


@attrs.define
class Client:
    name: str
    passed: list[str]
    is_open: bool = True
    is_held: bool = False

    def hold(self) -> None:
        self.is_held = True

    def let_in(self, data: bytes) -> None:
        assert data in (POST, GET)
        self.is_held = False
        self.passed.append(self.name)


def come(turnstile: Turnstile, passed: list[str], count: int) -> list[Client]:
    clients = [Client(str(number), passed) for number in range(count)]
    for client in clients:
        turnstile.come(client, POST)
    return clients


def names(count: int) -> list[str]:
    return [str(number) for number in range(count)]


async def test_each_turn_lets_in_a_few_and_the_rest_in_order() -> None:
    passed: list[str] = []
    turnstile = Turnstile(asyncio.get_running_loop())
    clients = come(turnstile, passed, 2 * TURN_MAX + 3)
    assert passed == names(TURN_MAX)
    assert [client.is_held for client in clients] == [False] * TURN_MAX + [True] * (TURN_MAX + 3)
    await asyncio.sleep(0)
    assert passed == names(2 * TURN_MAX)
    await asyncio.sleep(0)
    assert passed == names(2 * TURN_MAX + 3)
    assert turnstile.waiting == 0


async def test_a_probe_passes_those_who_wait() -> None:
    passed: list[str] = []
    turnstile = Turnstile(asyncio.get_running_loop())
    come(turnstile, passed, TURN_MAX + 2)
    turnstile.come(Client("probe", passed), GET)
    assert passed == [*names(TURN_MAX), "probe"]


async def test_who_comes_in_a_later_turn_waits_behind_those_who_wait() -> None:
    passed: list[str] = []
    turnstile = Turnstile(asyncio.get_running_loop())
    come(turnstile, passed, 2 * TURN_MAX + 1)
    await asyncio.sleep(0)
    turnstile.come(Client("late", passed), POST)
    await asyncio.sleep(0)
    assert passed == [*names(2 * TURN_MAX + 1), "late"]


async def test_who_has_left_while_waiting_is_past_and_takes_nobodys_place() -> None:
    passed: list[str] = []
    turnstile = Turnstile(asyncio.get_running_loop())
    clients = come(turnstile, passed, 2 * TURN_MAX + 1)
    clients[TURN_MAX].is_open = False
    await asyncio.sleep(0)
    assert passed == [name for name in names(2 * TURN_MAX + 1) if name != str(TURN_MAX)]


async def test_who_comes_alone_never_waits() -> None:
    passed: list[str] = []
    turnstile = Turnstile(asyncio.get_running_loop())
    for number in range(3 * TURN_MAX):
        turnstile.come(Client(str(number), passed), POST)
        assert passed[-1] == str(number)
        await asyncio.sleep(0)
