"""An operator's order over HTTP: what is taken, what is refused, and how it is answered."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lmpool.core.messages.transfer import TransferMode
from lmpool.io.errors import LMPoolError, NoReplica, TransferDenied
from lmpool.io.http.keys import Client, Keys
from lmpool.io.transfer_order import TransferWish
from tests.io.http.scripted import ScriptedService, application, client_of

pytestmark = pytest.mark.anyio

KEYS = Keys({b"sk-1": Client("red", is_admin=False), b"sk-2": Client("blue", is_admin=True)})
ADMIN = {"authorization": "Bearer sk-2"}
ORDER = {"prompt": [5, 6, 7], "source": 0, "target": 1}


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService()


@pytest.fixture
async def client(tmp_path: Path, service: ScriptedService) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(application(tmp_path, service)) as client:
        yield client


@pytest.fixture
async def locked(tmp_path: Path, service: ScriptedService) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server with keys."""
    async with client_of(application(tmp_path / "locked", service, keys=KEYS)) as client:
        yield client


async def test_only_an_admin_orders_a_transfer(client: httpx.AsyncClient, locked: httpx.AsyncClient) -> None:
    assert (await client.post("/pool/transfer", json=ORDER)).status_code == 403
    assert (await locked.post("/pool/transfer", json=ORDER)).status_code == 401
    key = {"authorization": "Bearer sk-1"}
    assert (await locked.post("/pool/transfer", json=ORDER, headers=key)).status_code == 403


async def test_an_order_is_passed_on_whole(locked: httpx.AsyncClient, service: ScriptedService) -> None:
    answer = await locked.post("/pool/transfer", json=ORDER, headers=ADMIN)
    assert (answer.status_code, answer.json()) == (200, {"transfer": "4-1"})
    whole = {"chain": "ab" * 32, "source": 1, "target": 0, "mode": "move", "copy_seconds": 2.5}
    named = {"tenant": "one", "cache_salt": "s"}
    assert (await locked.post("/pool/transfer", json=whole | named, headers=ADMIN)).json() == {"transfer": "4-2"}
    first, second = service.wishes
    assert (first.prompt, first.chain, first.mode, first.copy_s) == ((5, 6, 7), b"", TransferMode.COPY, 30.0)
    assert second == TransferWish(None, b"\xab" * 32, "one", "s", 1, 0, TransferMode.MOVE, 2.5)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"chain": "ab" * 16}, "prompt"),
        ({"prompt": None, "chain": "zz" * 16}, "chain"),
        ({"prompt": None, "chain": "ab" * 17}, "chain"),
        ({"prompt": [99_999_999]}, "prompt[0]"),
        ({"prompt": []}, "prompt"),
        ({"source": None}, "source"),
        ({"target": 64}, "target"),
        ({"source": "0"}, "source"),
        ({"mode": "swap"}, "mode"),
        ({"copy_seconds": 0.01}, "copy_seconds"),
    ],
)
async def test_an_order_that_makes_no_sense_is_refused(
    locked: httpx.AsyncClient, service: ScriptedService, change: dict[str, Any], param: str
) -> None:
    answer = await locked.post("/pool/transfer", json=ORDER | change, headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert service.wishes == []


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (TransferDenied("The transfer was not begun: source busy."), 409, "transfer_denied"),
        (NoReplica("The control process is not linked."), 503, "no_replica"),
    ],
)
async def test_what_control_denies_is_told(
    locked: httpx.AsyncClient, service: ScriptedService, error: LMPoolError, status: int, code: str
) -> None:
    service.error = error
    answer = await locked.post("/pool/transfer", json=ORDER, headers=ADMIN)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert str(error) in answer.json()["error"]["message"]


async def test_the_state_of_the_pool_tells_of_transfers(client: httpx.AsyncClient) -> None:
    transfers = (await client.get("/pool/state")).json()["transfers"]
    assert transfers == {
        "under_way": [],
        "over": [
            {
                "transfer": "4-9",
                "source": 0,
                "target": 1,
                "mode": "copy",
                "blocks": 3,
                "phase": "ended",
                "outcome": "published",
                "cause": None,
                "copy_seconds": 0.0015,
                "seconds": 0.004,
            }
        ],
        "outcomes": {"published": 1},
        "refusals": {"no blocks": 2},
        "blocks": 3,
        "bytes": 4096,
        "copy_seconds": 0.0015,
        "placement": {
            "admitted": {"pull": 1},
            "refused": [{"occasion": "copy", "gate": "not worth it", "times": 4}],
            "published_blocks": {"pull": 3},
            "predictions": 1,
            "seconds": 0.03,
            "error_seconds": 0.01,
            "over_median": 1,
            "over_p95": 0,
            "placed": [
                {
                    "transfer": "4-9",
                    "occasion": "pull",
                    "source": 0,
                    "target": 1,
                    "blocks": 3,
                    "began_ns": 5,
                    "predicted_seconds": 0.02,
                    "predicted_p95_seconds": 0.04,
                    "saves_seconds": 0.09,
                    "rent_seconds": 0.005,
                    "outcome": "published",
                    "seconds": 0.03,
                }
            ],
            "refusals": [{"at_ns": 7, "reason": "copy of 3 blocks", "times": 4}],
        },
    }
