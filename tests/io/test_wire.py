"""Frames: every record round-trips, nothing is coerced, and a peer's nonsense is a WireError and nothing else."""

import json
import math
from itertools import pairwise
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.ids import SECOND, RequestId, Role
from lmpool.core.messages.ingress_control import BookingsOffered, DecisionsReported, RouteAsked, StateAsked
from lmpool.core.messages.ingress_worker import Abort, FinishChoice, Submit, TokensProduced
from lmpool.core.messages.transfer import (
    BeginCopy,
    Copied,
    PrepareSource,
    PrepareTarget,
    Published,
    SourcePrepared,
    TargetPrepared,
    TransferAsked,
    TransferEnded,
)
from lmpool.core.messages.worker_control import FullReport, Report, WorkerJoined
from lmpool.io.wire import PREFIX, Framed, FrameSplitter, Hello, WireError, decode, encode
from tests.io.wire_records import EXAMPLES, KINDS, LOAD, RATES, REQUEST, SAMPLING, STOP, framed

BY_KIND = {type(record): record for record in EXAMPLES}
LIMIT = 1 << 20


def frame(fields: Any, binary: bytes = b"") -> bytes:
    text = json.dumps(fields).encode()
    return PREFIX.pack(len(text) + len(binary), len(text)) + text + binary


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    _, length = PREFIX.unpack_from(data)
    return json.loads(data[PREFIX.size : PREFIX.size + length]), data[PREFIX.size + length :]


def changed(record: Framed, **fields: Any) -> bytes:
    """A frame of this record with some JSON values replaced."""
    text, binary = parts(encode(record))
    return frame(text | fields, binary)


def test_every_kind_has_an_example() -> None:
    assert set(BY_KIND) == set(KINDS)


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_a_record_round_trips(record: Framed) -> None:
    assert decode(encode(record)) == record


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_any_record_round_trips(kind: type, data: st.DataObject) -> None:
    record = data.draw(framed(kind))
    assert decode(encode(record)) == record


def test_types_survive() -> None:
    report = decode(encode(BY_KIND[Report]))
    assert isinstance(report, Report)
    assert type(report.accepted[0]) is RequestId
    assert type(report.rates.prefill) is float
    hello = decode(encode(BY_KIND[Hello]))
    assert isinstance(hello, Hello)
    assert hello.role is Role.WORKER


def test_bytes_travel_behind_the_json_in_the_order_of_the_fields() -> None:
    text, binary = parts(encode(BY_KIND[Submit]))
    assert (text["namespace"], text["prompt"], text["chain"], text["outputs"]) == (16, 8, 0, [0, 4])
    assert binary == b"namespace digest" + b"\x0b\x00\x00\x00\x0c\x00\x00\x00" + b"\x0d\x00\x00\x00"


def test_numbers_that_json_lacks_survive() -> None:
    example = BY_KIND[DecisionsReported]
    assert isinstance(example, DecisionsReported)
    candidate = attrs.evolve(example.decisions[0].candidates[0], terms=(math.inf, -math.inf), cost=math.nan)
    decision = attrs.evolve(example.decisions[0], candidates=(candidate,))
    reported = decode(encode(attrs.evolve(example, decisions=(decision,))))
    assert isinstance(reported, DecisionsReported)
    (read,) = reported.decisions[0].candidates
    assert read.terms == (math.inf, -math.inf)
    assert math.isnan(read.cost)


def test_an_integer_is_welcome_as_a_float_and_becomes_one() -> None:
    text, binary = parts(encode(BY_KIND[WorkerJoined]))
    text["rates"]["step"] = 3
    joined = decode(frame(text, binary))
    assert isinstance(joined, WorkerJoined)
    assert type(joined.rates.step) is float


@pytest.mark.parametrize(
    "bad",
    [
        changed(Abort(REQUEST), request=[1, True]),
        changed(Abort(REQUEST), request=[1, "7"]),
        changed(Abort(REQUEST), request=[1, 7.0]),
        changed(Abort(REQUEST), request=[1]),
        changed(Abort(REQUEST), request=[1, 2, 3]),
        changed(Abort(REQUEST), request={"ingress": 1, "counter": 2}),
        changed(Abort(REQUEST), request="17"),
        changed(Abort(REQUEST), extra=1),
        changed(StateAsked(1), number=None),
        changed(StateAsked(1), number=1 << 70),
        changed(StateAsked(1), kind="Nonsense"),
        changed(StateAsked(1), kind=5),
        changed(StateAsked(1), kind=["StateAsked"]),
        changed(BY_KIND[Hello], role="captain"),
        changed(BY_KIND[Hello], role=["worker"]),
        changed(BY_KIND[Hello], run=5),
        changed(BY_KIND[RouteAsked], session=None),
        changed(BY_KIND[RouteAsked], session="s" * 257),
        changed(BY_KIND[RouteAsked], priority=9),
        changed(BY_KIND[RouteAsked], excluded="12"),
        changed(BY_KIND[RouteAsked], excluded={"1": 2}),
        changed(BY_KIND[RouteAsked], choices=129),
        changed(BY_KIND[RouteAsked], chain=15),
        changed(BY_KIND[RouteAsked], chain=-1),
        changed(BY_KIND[RouteAsked], chain=True),
        changed(BY_KIND[RouteAsked], chain="16"),
        changed(BY_KIND[Submit], outputs=5),
        changed(BY_KIND[Submit], outputs=[0, 3]),
        changed(BY_KIND[Submit], outputs=[4]),
        changed(BY_KIND[Submit], prompt=0, chain=8),
        changed(BY_KIND[Submit], choices=[]),
        changed(BY_KIND[TokensProduced], attempts=[0]),
        changed(BY_KIND[TokensProduced], tokens=[1, False]),
        changed(BY_KIND[TokensProduced], logprobs=[None]),
        changed(BY_KIND[TokensProduced], finishes=[None, "tired"]),
        changed(BY_KIND[Report], prefill_tokens=[]),
        changed(BY_KIND[Report], accepted=[[1, 2], [3]]),
        changed(BY_KIND[Report], load=[]),
        changed(BY_KIND[FullReport], part=1),
        changed(BY_KIND[WorkerJoined], block_size=48),
        changed(BY_KIND[WorkerJoined], rates={"step": 1}),
        changed(BY_KIND[Report], prefill_tokens=[-1]),
        changed(BY_KIND[Report], rates=attrs.asdict(RATES) | {"decode": "nan"}),
        changed(BY_KIND[Report], rates=attrs.asdict(RATES) | {"step": -1.0}),
        changed(BY_KIND[Report], load=attrs.asdict(LOAD) | {"waiting_tokens": -5}),
        changed(BY_KIND[WorkerJoined], blocks=1 << 40),
        changed(BY_KIND[WorkerJoined], model_tokens_max=0),
        changed(BY_KIND[Submit], choices=[1, 1]),
        changed(BY_KIND[Submit], choices=[1, 0]),
        changed(BY_KIND[Submit], choices=[0, 128]),
        changed(BY_KIND[Submit], sampling=attrs.asdict(SAMPLING) | {"temperature": "nan"}),
        changed(BY_KIND[Submit], sampling=attrs.asdict(SAMPLING) | {"repetition_penalty": 0}),
        changed(BY_KIND[Submit], stop=attrs.asdict(STOP) | {"output_tokens_max": -1}),
        changed(BY_KIND[RouteAsked], output_tokens_max=-1),
        changed(BY_KIND[BookingsOffered], ranks=[-1]),
        changed(BY_KIND[FinishChoice], output_index=-2),
        changed(BY_KIND[TokensProduced], tokens=[-1, 2]),
        changed(BY_KIND[TokensProduced], choices=[0, -1]),
        changed(BY_KIND[TokensProduced], tokens=[1 << 33, 2]),
        changed(BY_KIND[Submit], awaits=[4, 9]),
        changed(BY_KIND[Submit], awaits={"transfer": [4, 9], "blocks": -1, "until_ns": 1}),
        changed(BY_KIND[PrepareSource], chain=15),
        changed(BY_KIND[PrepareSource], first=2),
        changed(BY_KIND[PrepareSource], first=-1),
        changed(BY_KIND[PrepareSource], target=64),
        changed(BY_KIND[PrepareSource], mode="steal"),
        changed(BY_KIND[PrepareSource], deadline_ns=-1),
        changed(BY_KIND[PrepareTarget], means="telepathy"),
        changed(BY_KIND[BeginCopy], blocks=[]),
        changed(BY_KIND[BeginCopy], blocks=[1, 2]),
        changed(BY_KIND[BeginCopy], blocks=[-1]),
        changed(BY_KIND[BeginCopy], blocks=[1 << 24]),
        changed(BY_KIND[BeginCopy], generations=[-1]),
        changed(BY_KIND[SourcePrepared], blocks=list(range(16_385)), generations=[0] * 16_385),
        changed(BY_KIND[TargetPrepared], blocks=0),
        changed(BY_KIND[TargetPrepared], first=-1),
        changed(BY_KIND[Copied], size_bytes=-1),
        changed(BY_KIND[Published], version=0),
        changed(BY_KIND[TransferEnded], blocks_freed=-1),
        changed(BY_KIND[TransferEnded], end="bored"),
        changed(BY_KIND[TransferAsked], copy_ns=0),
        changed(BY_KIND[TransferAsked], lease_ns=4_000 * SECOND),
        changed(BY_KIND[TransferAsked], source=-1),
        frame([]),
        frame("StateAsked"),
        frame({}),
        frame({"kind": "StateAsked"}),
        frame({"kind": "StateAsked", "number": 1}, b"left over"),
        PREFIX.pack(2, 3) + b"{}",
        PREFIX.pack(3, 2) + b"{}",
        PREFIX.pack(3, 3) + b"{}}",
        PREFIX.pack(3, 3) + b"NaN",
        PREFIX.pack(1, 1) + b"\xff",
        PREFIX.pack(4000, 4000) + b"[" * 4000,
        b"",
        b"\x00",
    ],
)
def test_nonsense_is_the_peers_fault(bad: bytes) -> None:
    with pytest.raises(WireError):
        decode(bad)


def test_a_fault_names_its_place() -> None:
    with pytest.raises(WireError, match=r"WorkerJoined: .*rates.step"):
        decode(changed(BY_KIND[WorkerJoined], rates=attrs.asdict(RATES) | {"step": "fast"}))


def decoded_or_refused(data: bytes) -> None:
    try:
        record = decode(data)
    except WireError:
        return
    assert decode(encode(record)) == record or record != record  # NaN is not itself


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_a_fault(data: bytes) -> None:
    decoded_or_refused(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(record=st.sampled_from(EXAMPLES), data=st.data())
def test_any_value_in_any_field_is_a_record_or_a_fault(record: Framed, data: st.DataObject) -> None:
    text, binary = parts(encode(record))
    field = data.draw(st.sampled_from([*text, "unknown"]))
    decoded_or_refused(frame(text | {field: data.draw(JSON)}, data.draw(st.sampled_from((binary, b"", binary + b"x")))))


@given(record=st.sampled_from(EXAMPLES), data=st.data())
def test_any_changed_byte_is_a_record_or_a_fault(record: Framed, data: st.DataObject) -> None:
    whole = bytearray(encode(record))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    decoded_or_refused(bytes(whole))


@given(records=st.lists(st.sampled_from(EXAMPLES), max_size=6), cuts=st.lists(st.integers(0, 3000), max_size=8))
def test_a_stream_is_cut_into_its_frames_wherever_it_was_broken(records: list[Framed], cuts: list[int]) -> None:
    stream = b"".join(map(encode, records))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    splitter = FrameSplitter(LIMIT)
    frames = [part for begin, end in pairwise(edges) for part in splitter.split(stream[begin:end])]
    assert list(map(decode, frames)) == records


def test_a_frame_over_the_limit_is_refused_by_its_prefix() -> None:
    splitter = FrameSplitter(100)
    with pytest.raises(WireError, match="101 bytes"):
        list(splitter.split(PREFIX.pack(101, 5)))


def test_good_frames_before_a_bad_one_arrive() -> None:
    good = encode(StateAsked(1))
    splitter = FrameSplitter(100)
    frames = splitter.split(good + PREFIX.pack(101, 5))
    assert next(frames) == good
    with pytest.raises(WireError):
        next(frames)


def test_a_large_submit_round_trips() -> None:
    submit = BY_KIND[Submit]
    assert isinstance(submit, Submit)
    large = attrs.evolve(submit, prompt=b"\x01\x00\x00\x00" * (1 << 20), choices=(0,), outputs=(b"",))
    assert decode(encode(large)) == large
