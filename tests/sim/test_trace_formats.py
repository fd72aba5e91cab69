import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from lmpool.core.ids import MILLISECOND, SECOND
from lmpool.sim.trace import PRIVATE_FIRST, Part, Trace, TraceError, prompt_lengths
from lmpool.sim.trace_formats import read_trace, write_trace
from tests.sim.racks import asked, continued, trace

EXCERPT = Path(__file__).parent / "conversation_excerpt.jsonl"
HEADER = {"format": "lmpool-trace", "version": 1}


def _write(folder: Path, *lines: Any) -> Path:
    path = folder / "made.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def _mooncake(**changes: Any) -> dict[str, Any]:
    return {"timestamp": 27_000, "input_length": 1_100, "output_length": 9, "hash_ids": [7, 4, 9]} | changes


def _bailian(**changes: Any) -> dict[str, Any]:
    return {
        "chat_id": 159,
        "parent_chat_id": -1,
        "timestamp": 61.114,
        "input_length": 35,
        "output_length": 12,
        "type": "text",
        "turn": 1,
        "hash_ids": [1089, 1090, 1091],
    } | changes


def test_a_mooncake_line_gives_whole_shared_blocks_and_a_private_tail(tmp_path: Path) -> None:
    made = read_trace(_write(tmp_path, _mooncake(), _mooncake(timestamp=30_000, hash_ids=[7, 5, 9])), None)
    assert made.block_size == 512
    first, second = made.requests
    assert first.parts == (Part(0, 512), Part(1, 512), Part(PRIVATE_FIRST, 76))
    assert second.parts == (Part(0, 512), Part(2, 512), Part(PRIVATE_FIRST + 1, 76))
    assert (first.at_ns, first.output_tokens, first.session) == (27_000 * MILLISECOND, 9, "")


def test_the_excerpt_of_the_conversation_trace_is_read_whole() -> None:
    made = read_trace(EXCERPT, None)
    lines = [json.loads(line) for line in EXCERPT.read_text().splitlines()]
    assert len(made.requests) == len(lines) == 200
    assert prompt_lengths(made) == [line["input_length"] for line in lines]
    assert [request.output_tokens for request in made.requests] == [line["output_length"] for line in lines]
    shared = {part.content for request in made.requests for part in request.parts if part.content < PRIVATE_FIRST}
    whole = {block for line in lines for block in line["hash_ids"][: line["input_length"] // 512]}
    assert len(shared) == len(whole)


def test_bailian_turns_of_a_chat_are_one_session(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        _bailian(chat_id=55),
        _bailian(chat_id=159, parent_chat_id=55, turn=2),
        _bailian(chat_id=160, parent_chat_id=159, turn=3),
        _bailian(chat_id=161),
        _bailian(chat_id=162, parent_chat_id=12, turn=2),
    )
    made = read_trace(path, None)
    assert made.block_size == 16
    assert [request.session for request in made.requests] == ["55", "55", "55", "161", "12"]
    assert made.requests[0].at_ns == 61.114 * SECOND
    assert made.requests[0].parts[:2] == (Part(0, 16), Part(1, 16))
    assert made.requests[0].parts[2].tokens == 3


def test_recorded_requests_come_in_order_of_time(tmp_path: Path) -> None:
    made = read_trace(_write(tmp_path, _bailian(timestamp=2.0, output_length=2), _bailian(timestamp=1.0)), None)
    assert [request.output_tokens for request in made.requests] == [12, 2]


def test_hash_ids_may_be_texts_and_of_another_block_size(tmp_path: Path) -> None:
    made = read_trace(_write(tmp_path, _mooncake(input_length=64, hash_ids=["a1", "b2"])), 32)
    assert made.block_size == 32
    assert made.requests[0].parts == (Part(0, 32), Part(1, 32))


def test_our_own_format_comes_back_as_it_was_written(tmp_path: Path) -> None:
    made = Trace(
        "sessions",
        None,
        trace(
            asked(0, (5, 20), (6, 3), session="a"), continued(0, 1.5, (7, 4), output=2), asked(12.5, (5, 20))
        ).requests,
    )
    path = tmp_path / "own.jsonl"
    write_trace(made, path)
    assert read_trace(path, None) == made


def test_a_recorded_trace_written_in_our_own_format_shares_the_same(tmp_path: Path) -> None:
    made = read_trace(EXCERPT, None)
    path = tmp_path / "own.jsonl"
    write_trace(made, path)
    again = read_trace(path, None)
    assert prompt_lengths(again) == prompt_lengths(made)
    numbers: dict[int, int] = {}
    for one, other in zip(made.requests, again.requests, strict=True):
        for mine, theirs in zip(one.parts, other.parts, strict=True):
            assert numbers.setdefault(mine.content, theirs.content) == theirs.content
    assert len(set(numbers.values())) == len(numbers)


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([], r"made\.jsonl: there is no line"),
        (["{"], r"made\.jsonl:1: is not JSON"),
        (["[1]"], r"made\.jsonl:1: is not a JSON object"),
        ([{"prompt": "hello"}], r"made\.jsonl:1: .*no known trace format"),
        ([_mooncake(), _mooncake(hash_ids=[1, 2])], r"made\.jsonl:2: there are 2 hash_ids for 1100 tokens, .* be 3"),
        ([_mooncake(input_length="many")], r"input_length is 'many' and should be a whole number of at least 1"),
        ([_mooncake(timestamp=-1)], "timestamp is -1 and should be a number of at least 0"),
        ([_mooncake(timestamp=True)], "timestamp is True"),
        ([_mooncake(hash_ids=[1.5, 2, 3])], r"1\.5 in hash_ids"),
        ([_mooncake(hash_ids=None)], "hash_ids is None and should be a list"),
        ([_mooncake(), "", _mooncake(output_length=None)], r"made\.jsonl:3: output_length is None"),
        ([_bailian(chat_id="x")], "chat_id is 'x'"),
        ([{"format": "other", "version": 1}], "should say format 'lmpool-trace', version 1"),
        ([HEADER], "followed by no request"),
        ([HEADER, {"parts": [[1, 2]], "output_tokens": 1}], r":2: should have either at_ms or pause_ms"),
        ([HEADER, {"at_ms": 1, "parts": [], "output_tokens": 1}], "parts is empty"),
        ([HEADER, {"at_ms": 1, "parts": [[1, 0]], "output_tokens": 1}], r"\[1, 0\] in parts should be"),
        ([HEADER, {"at_ms": 1, "parts": [[1, 5]], "output_tokens": 0}], "output_tokens is 0"),
        ([HEADER, {"pause_ms": 1, "parts": [[1, 5]], "output_tokens": 1}], "does not say which request it continues"),
        ([HEADER, {"continues": 0, "pause_ms": 1, "parts": [[1, 5]], "output_tokens": 1}], "not an earlier one"),
        (
            [
                HEADER,
                {"at_ms": 9, "parts": [[1, 5]], "output_tokens": 1},
                {"at_ms": 8, "parts": [[1, 5]], "output_tokens": 1},
            ],
            r":3: its at_ms is before",
        ),
    ],
)
def test_a_fault_names_file_line_and_what_is_wrong(tmp_path: Path, lines: list[Any], fault: str) -> None:
    with pytest.raises(TraceError, match=fault):
        read_trace(_write(tmp_path, *lines), None)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere\.jsonl"):
        read_trace(tmp_path / "nowhere.jsonl", None)


def test_a_bound_in_flight_and_stages_are_kept_in_our_own_format(tmp_path: Path) -> None:
    requests = [attrs.evolve(asked(0, (number, 20)), stage=number // 2) for number in range(4)]
    made = attrs.evolve(trace(*requests), in_flight_max=3)
    path = tmp_path / "own.jsonl"
    write_trace(made, path)
    assert read_trace(path, None) == made


def test_stages_do_not_go_back(tmp_path: Path) -> None:
    line = {"at_ms": 0, "parts": [[0, 4]], "output_tokens": 1}
    path = _write(tmp_path, HEADER, {**line, "stage": 1}, line)
    with pytest.raises(TraceError, match=r"made\.jsonl:3: its stage is before that of the line above"):
        read_trace(path, None)
