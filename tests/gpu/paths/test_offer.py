import json
import os
import socket
import struct
from pathlib import Path

import pytest

from lmpool.gpu.paths.cuda_ipc import DeviceMemory
from lmpool.gpu.paths.offer import PoolOffer, decode_offer, encode_offer, receive_offer, send_offer
from lmpool.gpu.paths.planes import pool_form
from lmpool.gpu.paths.port import CopyRefused, PathError, PathKind
from tests.gpu.paths.pools import SHAPE, filled_pool

pytestmark = pytest.mark.model

FORM = pool_form(filled_pool(SHAPE, 4, seed=1))
FACTS = json.loads(encode_offer(PoolOffer(PathKind.SHARED_MEMORY, FORM, None)))
DEVICE = FACTS | {"path": "cuda-ipc", "handle": "00" * 64, "offset": 0}


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    "offer",
    [
        PoolOffer(PathKind.SHARED_MEMORY, FORM, None),
        PoolOffer(PathKind.GLOO, FORM, None),
        PoolOffer(PathKind.CUDA_IPC, FORM, DeviceMemory(bytes(range(64)), 4096)),
    ],
)
def test_offers_come_back(offer: PoolOffer) -> None:
    assert decode_offer(encode_offer(offer)) == offer


@pytest.mark.parametrize(
    "facts",
    [
        [],
        {},
        FACTS | {"layers": 0},
        FACTS | {"layers": -1},
        FACTS | {"layers": True},
        FACTS | {"layers": 3.0},
        FACTS | {"blocks": 1 << 60},
        FACTS | {"dtype": 5},
        FACTS | {"more": 1},
        FACTS | {"path": "tcp"},
        FACTS | {"path": "cuda-ipc"},
        FACTS | {"handle": "00" * 64, "offset": 0},
        DEVICE | {"handle": "00"},
        DEVICE | {"handle": "zz" * 64},
        DEVICE | {"handle": 5},
        DEVICE | {"offset": -1},
        DEVICE | {"more": 1},
    ],
)
def test_facts_that_make_no_sense_are_refused(facts: object) -> None:
    with pytest.raises(CopyRefused):
        decode_offer(json.dumps(facts).encode())


@pytest.mark.parametrize("data", [b"", b"\xff", b"nonsense", b"[" * 2000])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(CopyRefused):
        decode_offer(data)


def test_a_descriptor_comes_along_and_is_the_receivers() -> None:
    pool = filled_pool(SHAPE, 4, seed=1)
    left, right = socket.socketpair()
    with left, right:
        before = open_descriptors()
        send_offer(left, PathKind.SHARED_MEMORY, pool, None)
        offer, descriptor = receive_offer(right)
        assert offer == PoolOffer(PathKind.SHARED_MEMORY, FORM, None)
        assert descriptor is not None
        assert os.fstat(descriptor).st_size == pool.size_bytes
        os.close(descriptor)
        assert open_descriptors() == before


def test_a_receiver_that_hangs_up_as_soon_as_it_has_everything_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one-sided targets do: to send even nothing to a closed socket is a broken pipe."""
    left, right = socket.socketpair()
    send = socket.send_fds

    def sent_and_received(connected: socket.socket, parts: list[bytes], descriptors: list[int]) -> int:
        sent = send(connected, parts, descriptors)
        _, descriptor = receive_offer(right)
        assert descriptor is not None
        os.close(descriptor)
        right.close()
        return sent

    monkeypatch.setattr(socket, "send_fds", sent_and_received)
    with left:
        send_offer(left, PathKind.SHARED_MEMORY, filled_pool(SHAPE, 4, seed=1), None)


@pytest.mark.parametrize(
    ("sent", "descriptors"),
    [
        (b"", 0),
        (struct.pack("<I", 50), 1),
        (struct.pack("<I", 1 << 20), 1),
        (struct.pack("<I", 2) + b"{}", 1),
        (struct.pack("<I", len(json.dumps(FACTS))) + json.dumps(FACTS).encode(), 0),
        (struct.pack("<I", len(json.dumps(DEVICE))) + json.dumps(DEVICE).encode(), 1),
    ],
    ids=["nothing", "half", "too long", "no facts", "no descriptor", "a descriptor that nobody wants"],
)
def test_an_offer_that_is_refused_leaves_no_descriptor(sent: bytes, descriptors: int) -> None:
    pool = filled_pool(SHAPE, 4, seed=1)
    assert pool.descriptor is not None
    left, right = socket.socketpair()
    with right:
        before = open_descriptors()
        if sent:
            socket.send_fds(left, [sent], [pool.descriptor] * descriptors)
        left.close()
        with pytest.raises(PathError):
            receive_offer(right)
        assert open_descriptors() == before - 1


def test_a_silent_peer_is_an_error_and_not_for_ever() -> None:
    left, right = socket.socketpair()
    with left, right:
        right.settimeout(0.05)
        with pytest.raises(PathError, match="timed out"):
            receive_offer(right)
