"""Lines between the supervisor and a child: strict both ways."""

from contextlib import suppress

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.io.channel import ChannelError, Lines, decode_notice, decode_order, encode_line
from lmpool.io.orders import (
    Beat,
    ControlOrder,
    Drain,
    Failed,
    IngressOrder,
    Notice,
    Order,
    PlacementOrder,
    Prepared,
    PrepareOrder,
    Progress,
    Ready,
    WorkerOrder,
)

WORKER = WorkerOrder(
    run="r-1",
    run_folder="/run/r-1",
    rank=1,
    epoch=4,
    model_folder="/models/tiny",
    device="cpu",
    dtype="auto",
    threads=1,
    block_size=16,
    kv_blocks=64,
    kv_bytes=None,
    replicas=2,
    model_tokens_max=None,
    step_tokens_max=256,
    sequences_max=16,
    waiting_requests_max=64,
    waiting_tokens_max=65536,
    calibration_file="/models/calibration.json",
    transfer_path="auto",
    sums_transfers=True,
    log_level="info",
)
ORDERS: tuple[Order | Drain, ...] = (
    PrepareOrder(model=None, cache="/cache", model_tokens_max=512),
    WORKER,
    ControlOrder(
        run="r-1",
        run_folder="/run/r-1",
        epoch=2,
        policy="default",
        replicas=2,
        wait_max_s=30.0,
        placement=PlacementOrder("/models/calibration.json", "/models/tiny", 16, "shm", ((0, 1), (1, 0))),
        record_file="/tmp/recording",
        record_bytes_max=1 << 26,
        log_level="info",
    ),
    IngressOrder(
        run="r-1",
        run_folder="/run/r-1",
        epoch=3,
        replicas=2,
        model_folder="/models/tiny",
        served_names=("tiny", "small"),
        listen_fd=7,
        api_key_file=None,
        block_size=16,
        requests_max=256,
        body_bytes_max=1 << 20,
        drain_s=30.0,
        log_level="info",
    ),
    Drain(seconds=2.5),
)
NOTICES: tuple[Notice, ...] = (
    Progress("loading"),
    Ready(("cpu, float32", "64 blocks")),
    Prepared("/models/tiny"),
    Failed("no such model", "name a folder"),
    Beat(working=True, steps=12),
)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_orders_round_trip(order: Order | Drain) -> None:
    line = encode_line(order)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode_order(line) == order


@pytest.mark.parametrize("notice", NOTICES, ids=lambda notice: type(notice).__name__)
def test_notices_round_trip(notice: Notice) -> None:
    assert decode_notice(encode_line(notice)) == notice


def test_a_text_with_line_ends_stays_one_line() -> None:
    notice = Failed("one\ntwo", "three\r\n")
    assert encode_line(notice).count(b"\n") == 1
    assert decode_notice(encode_line(notice)) == notice


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"hello",
        b"[]",
        b"5",
        b"{}",
        b'{"kind":"Beat","working":1,"steps":2}',
        b'{"kind":"Beat","working":true,"steps":true}',
        b'{"kind":"Beat","working":true}',
        b'{"kind":"Beat","working":true,"steps":2,"more":3}',
        b'{"kind":"Ready","facts":"cpu"}',
        b'{"kind":"Ready","facts":["cpu",5]}',
        b'{"kind":["Beat"]}',
        encode_line(Drain(1.0)),
        encode_line(WORKER),
        b"\xff\xfe",
    ],
)
def test_what_is_no_notice_is_refused(line: bytes) -> None:
    with pytest.raises(ChannelError):
        decode_notice(line)


def test_a_notice_is_no_order() -> None:
    with pytest.raises(ChannelError, match="unknown kind 'Beat'"):
        decode_order(encode_line(Beat(working=False, steps=0)))


def test_a_fault_names_the_field() -> None:
    line = encode_line(attrs.evolve(WORKER)).replace(b'"rank":1', b'"rank":"1"')
    with pytest.raises(ChannelError, match=r"WorkerOrder: .*rank"):
        decode_order(line)


@given(st.binary(max_size=80))
def test_any_line_is_a_notice_or_refused(line: bytes) -> None:
    with suppress(ChannelError):
        decode_notice(line)


@given(st.sampled_from((encode_line(WORKER), encode_line(Drain(2.0)), encode_line(Beat(True, 3)))), st.data())
def test_a_spoiled_line_is_read_or_refused(line: bytes, data: st.DataObject) -> None:
    """Both ways: one piece of a good line is another."""
    begin = data.draw(st.integers(0, len(line)))
    end = data.draw(st.integers(begin, min(len(line), begin + 8)))
    spoiled = line[:begin] + data.draw(st.binary(max_size=8)) + line[end:]
    for decode in (decode_notice, decode_order):
        with suppress(ChannelError):
            decode(spoiled)


@given(
    lines=st.lists(st.binary(max_size=6).filter(lambda line: b"\n" not in line), max_size=6),
    rest=st.binary(max_size=5).filter(lambda line: b"\n" not in line),
    width=st.integers(1, 7),
)
def test_a_stream_is_cut_at_its_line_ends(lines: list[bytes], rest: bytes, width: int) -> None:
    stream = b"".join(line + b"\n" for line in lines) + rest
    cut = Lines(64)
    found = [line for start in range(0, len(stream), width) for line in cut.feed(stream[start : start + width])]
    assert found == lines
    assert cut.rest() == rest
    assert cut.rest() == b""


def test_a_long_line_becomes_several() -> None:
    cut = Lines(4)
    assert cut.feed(b"abcdefghij") == [b"abcd", b"efgh"]
    assert cut.feed(b"\nabcd\n\n12345\n") == [b"ij", b"abcd", b"", b"1234", b"5"]
