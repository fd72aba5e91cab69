import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typing_extensions import override

from lmpool.core.ids import Epoch, Rank
from lmpool.core.messages.ingress_control import RankState, StateReported
from lmpool.core.messages.transfer import TransfersShown
from lmpool.io.http.pool import state_document
from lmpool.io.pool_client import ClientError, operator_key
from lmpool.io.status import fetch_state, state_lines


def rank_state(rank: int, membership: str, computed: int, cached: int) -> RankState:
    return RankState(
        rank=Rank(rank),
        epoch=Epoch(3),
        membership=membership,
        blocks=100,
        blocks_free=60,
        blocks_cached=30,
        resident_hashes=35,
        waiting=4,
        prefilling=1,
        decoding=2,
        booked=7,
        prefill_tokens=5,
        tokens_computed=computed,
        tokens_cached=cached,
        steps_failed=1,
        preemptions=2,
        routed=11,
    )


STATE = StateReported(
    number=1,
    policy="marginal-time",
    ranks=(rank_state(0, "live", 250, 750), rank_state(1, "joining", 0, 0)),
    page_table_hashes=70,
    bookings=7,
    decisions=22,
    stale_dropped=0,
    resyncs=0,
    transfers=TransfersShown((), (), (), (), 0, 0, 0, None),
)


def test_the_table_shows_each_rank() -> None:
    lines = state_lines(state_document(STATE))
    assert lines[0] == "policy marginal-time, 7 open requests, 22 decisions, 70 blocks known"
    assert [line.split() for line in lines[1:]] == [
        ["rank", "state", "blocks", "used", "cached", "free", "hits", "running", "waiting", "routed"],
        ["0", "live", "100", "10", "30", "60", "75", "%", "3", "4", "11"],
        ["1", "joining", "100", "10", "30", "60", "-", "3", "4", "11"],
    ]
    assert len({len(line) for line in lines[1:]}) == 1


class Answers(BaseHTTPRequestHandler):
    @override
    def log_message(self, format: str, *args: object) -> None: ...

    def do_GET(self) -> None:
        is_known = self.headers.get("Authorization") == "Bearer k1"
        body = json.dumps(state_document(STATE) if is_known else {"error": {"message": "This server needs an API key"}})
        self.send_response(200 if is_known and self.path == "/pool/state" else 401)
        self.end_headers()
        self.wfile.write(body.encode())


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_first_key_of_the_servers_file_is_shown(url: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# ours\n\nk1 alice admin\nk2 bob\n")
    assert fetch_state(url + "/", operator_key(keys))["policy"] == "marginal-time"


def test_an_admins_key_is_preferred(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k1 alice\nk2 bob admin\nk3 eve admin\n")
    assert operator_key(keys) == "k2"
    keys.write_text("k1 alice\nk2 bob\n")
    assert operator_key(keys) == "k1"


def test_a_refusal_is_told_in_the_servers_words(url: str) -> None:
    with pytest.raises(ClientError, match=f"^{url} answers 401: This server needs an API key; --api-key-file FILE has"):
        fetch_state(url, None)


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(ClientError, match=r"no server answers at http://127.0.0.1:1 .*--url"):
        fetch_state("http://127.0.0.1:1", None)
    with pytest.raises(ClientError, match="looks like http://"):
        fetch_state("127.0.0.1:8000", None)
