import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lmpool import cli
from lmpool.core.route import POLICIES
from lmpool.sim.step_time import RATE_NAMES

EXCERPT = Path(__file__).parents[1] / "sim" / "conversation_excerpt.jsonl"
SMALL = ["--requests", "40", "--speed", "2"]


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = cli.main(["simulate", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    told = capsys.readouterr()
    return code, told.out, told.err


def _figures(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = _run(capsys, *arguments, "--json", "-")
    assert code == 0, err
    figures: dict[str, Any] = json.loads(out)
    return figures


def test_without_a_policy_each_runs_once_under_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, str(EXCERPT), *SMALL)
    assert code == 0
    rows = [line.split()[0] for line in out.split("policy", 1)[1].splitlines()[1:] if line]
    assert rows == [name for name in POLICIES if name != "default"]
    assert "reuse at most" in out


def test_the_figures_as_json_have_trace_bounds_and_runs(capsys: pytest.CaptureFixture[str]) -> None:
    figures = _figures(capsys, str(EXCERPT), *SMALL, "--policy", "default", "--policy", "round-robin")
    assert figures["trace"] == EXCERPT.name
    assert 0 < figures["bounds"]["pooled"] <= figures["bounds"]["infinite"] < 1
    assert [run["policy"] for run in figures["runs"]] == ["default", "round-robin"]
    for run in figures["runs"]:
        assert 0 <= run["reuse"] <= figures["bounds"]["infinite"]
        assert run["computed_prefill_tokens"] == run["prompt_tokens"] - run["cached_tokens"]
        assert 0 < run["ttft_s"]["p50"] <= run["ttft_s"]["p99"]
        assert run["ttft_s"]["mean"] < run["e2e_s"]["mean"] <= run["e2e_s"]["p99"]
        assert run["tpot_s"]["mean"] > 0
        assert len(bytes.fromhex(run["digest"])) == 16


def test_equal_runs_write_equal_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file in files:
        flags = ["--policy", "default", "--policy", "random", "--jitter", "--seed", "3", "--json", str(file)]
        code, out, _ = _run(capsys, str(EXCERPT), *SMALL, *flags)
        assert (code, "random" in out) == (0, True)
    assert files[0].read_text() == files[1].read_text()


def test_explaining_changes_no_figure(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [str(EXCERPT), "--speed", "9", "--policy", "least-loaded", "--replicas", "2"]
    plain = _figures(capsys, *flags)
    assert _figures(capsys, *flags, "--explain", "2") == plain


def test_decisions_against_a_known_prefix_are_told_with_what_they_cost(capsys: pytest.CaptureFixture[str]) -> None:
    """The first block is in every request of the excerpt."""
    code, out, _ = _run(capsys, str(EXCERPT), "--policy", "round-robin", "--replicas", "4", "--explain", "1")
    assert code == 0
    assert "round-robin:" in out
    assert "of 200 decisions passed over the longest known prefix" in out
    assert out.count("expected:") == out.count("really:") == 1


def test_seed_speed_and_jitter_matter(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [str(EXCERPT), "--requests", "40", "--policy", "default"]
    runs = [
        _figures(capsys, *flags, *more)["runs"][0]["digest"]
        for more in ([], ["--speed", "2"], ["--jitter"], ["--jitter", "--seed", "1"])
    ]
    assert len(set(runs)) == 4


def test_a_made_workload_stands_in_for_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    figures = _figures(
        capsys, "workload:agent-sessions", "--rate", "1", "--requests", "48", "--policy", "default", "--slow", "0:2",
        "--cold", "7:5",
    )  # fmt: skip
    assert figures["trace"] == "workload:agent-sessions"
    assert figures["requests"] == 48
    assert figures["rack"]["slow"] == [[0, 2.0]]
    assert figures["rack"]["cold"] == [[7, 5 * 10**9]]
    assert figures["rack"]["block_size"] == 64


def test_a_smaller_block_size_finds_no_less_and_a_profile_sets_the_times(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({f"{name}_ns": 1000.0 if name == "prefill" else 1.0 for name in RATE_NAMES}))
    flags = [str(EXCERPT), *SMALL, "--policy", "longest-prefix", "--profile", str(profile)]
    coarse, fine = _figures(capsys, *flags), _figures(capsys, *flags, "--block-size", "128")
    assert fine["runs"][0]["cached_tokens"] == coarse["runs"][0]["cached_tokens"]
    assert fine["rack"]["rates"]["prefill"] == 1000.0


def test_a_picture_is_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, begin in (("figures.png", b"\x89PNG"), ("figures.svg", b"<?xml")):
        code, _, _ = _run(capsys, str(EXCERPT), *SMALL, "--policy", "default", "--plot", str(tmp_path / name))
        assert code == 0
        assert (tmp_path / name).read_bytes().startswith(begin)


def test_without_matplotlib_one_line_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    flags = [str(EXCERPT), *SMALL, "--policy", "default", "--plot", str(tmp_path / "figures.png")]
    code, _, err = _run(capsys, *flags)
    assert code == 2
    assert "pip install 'lmpool[plot]'" in err


def test_a_request_that_fits_no_rank_is_counted_and_fails_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = _run(capsys, str(EXCERPT), "--kv-blocks", "30", "--policy", "default")
    assert code == 1
    assert "requests fit no rank and are in no figure of time" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "the following arguments are required: TRACE"),
        (["nowhere.jsonl"], "nowhere.jsonl"),
        (["workload:knitting"], "no workload is named 'knitting'"),
        ([str(EXCERPT), "--rate", "3"], "--speed multiplies"),
        ([str(EXCERPT), "--block-size", "24"], "take one that does, as 512"),
        ([str(EXCERPT), "--block-size", "4"], "--block-size 4: allowed is 8 to 512"),
        ([str(EXCERPT), "--replicas", "0"], "0 is less than 1"),
        ([str(EXCERPT), "--replicas", "900"], "at most 64"),
        ([str(EXCERPT), "--speed", "-1"], "-1 is not more than 0"),
        ([str(EXCERPT), "--slow", "8:2"], "--slow 8:2: ranks are 0 to 7"),
        (
            [str(EXCERPT), "--slow", "0:1e30"],
            "the number is more than 0 and at most 1,000",
        ),
        ([str(EXCERPT), "--slow", "0:2", "--slow", "0:3"], "--slow 0:3: rank 0 has its --slow already"),
        ([str(EXCERPT), "--cold", "one"], "--cold one: should be a rank, a colon and a number"),
        ([str(EXCERPT), "--sequences", "4096"], "no place would be left for prompts"),
        ([str(EXCERPT), "--policy", "best"], "argument --policy: invalid choice: 'best'"),
        ([str(EXCERPT), "--start", "200"], "no request from number 200 on"),
        ([str(EXCERPT), *SMALL, "--policy", "default", "--plot", "figures.bmp"], "should end in .png, .svg, .pdf"),
        ([str(EXCERPT), "--profile", "/nowhere"], "/nowhere is no file that can be read"),
        ([str(EXCERPT), *SMALL, "--policy", "default", "--json", "/nowhere/figures.json"], "/nowhere/figures.json"),
    ],
)
def test_wrong_usage_is_told_in_one_or_two_lines(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = _run(capsys, *arguments)
    assert code == 2
    assert told in err
    assert 1 <= len(err.splitlines()) <= 2


def test_placement_is_told_with_what_was_begun_and_refused(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["workload:hot-session-skew", "--requests", "60", "--rate", "3", "--policy", "default", "--placement", "on"]
    code, out, _ = _run(capsys, *flags)
    assert code == 0
    assert "default, transfers begun: pull " in out
    assert "not worth it" in out
    (run,) = _figures(capsys, *flags)["runs"]
    assert dict(run["placement"]["admitted"])["pull"] == sum(
        placed["occasion"] == "pull" for placed in run["placement"]["placed"]
    )
    (off,) = _figures(capsys, *flags[:-2])["runs"]
    assert off["placement"] is None
