"""`lmpool bench chat` against a server of our own: its counters prove, or disprove, what a run says of the cache."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmpool.bench.chat import main
from lmpool.bench.load.client import Target, play
from lmpool.bench.load.http import Dialect
from lmpool.sim.trace import at_speed, prompt_lengths, scaled, window
from lmpool.sim.trace_formats import read_trace
from tests.e2e.server import Server, serving

EXCERPT = Path(__file__).parents[1] / "sim" / "conversation_excerpt.jsonl"
SMALL = ["--seconds", "4", "--rate", "1", "--pauses", "0.05", "--documents", "2", "--late-max", "60"]


@pytest.fixture(scope="module")
def server(integer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("chat"), str(integer_folder), "--replicas", "2") as server:
        yield server


def _runs(server: Server, folder: Path, tokenizer: Path, *flags: str) -> list[Any]:
    figures = folder / "figures.json"
    code = main([*SMALL, "--url", server.url, "--tokenizer", str(tokenizer), "--json", str(figures), *flags])
    assert code == 0
    runs: list[Any] = json.loads(figures.read_text())["runs"]
    return runs


def test_two_cold_runs_reuse_what_their_traces_allow_and_no_more(
    server: Server, integer_folder: Path, tmp_path: Path
) -> None:
    tokenizer = integer_folder / "tokenizer.json"
    one, other = (_runs(server, tmp_path, tokenizer) for _ in range(2))
    assert [run["input"]["workload"] for run in one] == ["multi-round-chat", "long-doc-qa"]
    for mine, yours in zip(one, other, strict=True):
        assert mine["input"]["fingerprint"] == yours["input"]["fingerprint"]
        assert mine["input"]["contents_fingerprint"] != yours["input"]["contents_fingerprint"]
    for run in [*one, *other]:
        assert run["cache"]["source"] == "metrics of lmpool"
        assert 0.3 < run["cache"]["reuse"] <= run["sharing"][0]["tokens"] + 0.03
        assert not run["cache"]["doubts"]
        assert run["figures"]["itl_per"] == "token"
        assert run["figures"]["successes"] == run["input"]["requests"]


def test_a_recorded_trace_is_asked_in_tokens_of_exact_numbers(server: Server, integer_folder: Path) -> None:
    made = scaled(window(read_trace(EXCERPT, None), 0, 12), 0.02)
    target = Target(server.url, integer_folder.name, None, Dialect.EXTENDED, None, 300, 5, 60.0)
    played = asyncio.run(play(at_speed(made, 50.0), target, target.contents(), 2, lambda: None))
    assert [one.fault for one in played.measured] == [""] * 12
    assert [one.prompt_tokens for one in played.measured] == prompt_lengths(made)
    assert [one.output_tokens for one in played.measured] == [request.output_tokens for request in made.requests]


def test_a_server_that_knows_the_texts_is_not_cold(server: Server, integer_folder: Path, tmp_path: Path) -> None:
    flags = ("--workload", "long-doc-qa", "--contents", "77")
    _runs(server, tmp_path, integer_folder / "tokenizer.json", *flags)
    (warm,) = _runs(server, tmp_path, integer_folder / "tokenizer.json", *flags)
    assert warm["cache"]["reuse"] > 0.9
    assert warm["warnings"][0].endswith("not cold")


def test_a_primed_run_reuses_its_first_turns_as_well(server: Server, integer_folder: Path, tmp_path: Path) -> None:
    flags = ("--workload", "long-doc-qa", "--cache", "primed")
    (primed,) = _runs(server, tmp_path, integer_folder / "tokenizer.json", *flags)
    assert primed["cache"]["condition"] == "primed"
    assert primed["cache"]["reuse"] > 0.9
    assert not primed["cache"]["doubts"]
