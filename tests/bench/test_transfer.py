import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from lmpool.bench import transfer
from lmpool.bench.transactions import Times, TransactionError
from lmpool.bench.transfer import Samples, main, point, sizes
from lmpool.bench.transfer_figures import Curve, report_lines
from lmpool.bench.transfer_pair import Arms, Blocks, PairOrder, WrongBytes
from lmpool.bench.transfer_whole import WholeOrder
from lmpool.io.topology import RankPair

SMALL = ["--layers", "2", "--kv-heads", "1", "--head-dim", "8", "--rounds", "1", "--pairs", "0>1", "--cold", "1"]
NO_CUDA = {"cuda_devices": 0, "has_nccl": False}


class PretendedPair:
    """Every scattered copy takes 2 s, a run 1 s; plain copies 1 s and more."""

    arms = Arms(("slow", "fast"), ("flat",), 1 << 20)
    orders: list[PairOrder]
    fails = False

    def __init__(self, order: PairOrder) -> None:
        self.orders.append(order)

    def __enter__(self) -> "PretendedPair":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def path_s(self, source: Blocks, target: Blocks) -> float:
        assert len(set(source)) == len(set(target)) == len(source) == len(target)
        if self.fails:
            raise WrongBytes("blocks have arrived with other bytes")
        return 1.0 if source == tuple(range(source[0], source[0] + len(source))) and len(source) > 1 else 2.0

    def indexed_s(self, arm: str, source: Blocks, target: Blocks) -> float:
        return 1.5 if arm == "fast" else 9.0

    def flat_s(self, arm: str, source: int, target: int, blocks: int) -> float:
        return 0.9


def pretended_times(order: WholeOrder) -> dict[tuple[RankPair, int], Times]:
    """A second and a millisecond a block; what it adds grows by a millisecond with every block."""
    return {
        (pair, blocks): Times(1 + blocks * 1e-3, 9.0, 1e-3 * blocks) for pair in order.pairs for blocks in order.sizes
    }


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[PairOrder]:
    monkeypatch.setattr(PretendedPair, "orders", [], raising=False)
    monkeypatch.setattr(transfer, "MeasuredPair", PretendedPair)
    monkeypatch.setattr(transfer, "device_facts", lambda: NO_CUDA)
    monkeypatch.setattr(transfer, "whole_times", pretended_times)
    return PretendedPair.orders


def measured(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json", "-"])
    figures: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, figures


@pytest.mark.model
@pytest.mark.slow
def test_real_processes_are_measured_and_every_byte_checked(capsys: pytest.CaptureFixture[str]) -> None:
    code, figures = measured(["--path", "shm", "gloo", "--blocks", "1", "3", "--checksum", *SMALL], capsys)
    assert code == 0
    block_bytes = 2 * 2 * 16 * 8 * 2
    assert [(row["path"], row["pair"], row["blocks"], row["bytes"]) for row in figures["points"]] == [
        (path, [0, 1], blocks, blocks * block_bytes) for path in ("shm", "gloo") for blocks in (1, 3)
    ]
    for row in figures["points"]:
        assert 0 < row["p50_s"] <= row["p95_s"]
        assert row["indexed_copy_share"] > 0
        assert row["flat_copy_share"] > 0
        if row["path"] == "gloo":
            assert row["transaction_p50_s"] is row["transaction_p95_s"] is row["transaction_adds_p50_s"] is None
        else:
            assert 0 < row["transaction_adds_p50_s"] < row["transaction_p50_s"] <= row["transaction_p95_s"]


@pytest.mark.parametrize(
    ("largest_mib", "each", "expected"),
    [
        (64, 368_640, [1, 2, 4, 8, 16, 32, 64, 128, 183]),
        (64, 1 << 20, [1, 2, 4, 8, 16, 32, 64]),
        (64, 28 << 20, [1, 2, 4, 8, 16, 32, 64]),
        (64, 1 << 19, [1, 2, 4, 8, 16, 32, 64, 128]),
    ],
)
def test_sizes_reach_64_blocks_and_as_many_bytes_as_asked(largest_mib: int, each: int, expected: list[int]) -> None:
    assert sizes(largest_mib << 20, each) == expected
    assert expected[-1] * each >= largest_mib << 20


def test_shares_are_over_the_fastest_plain_copy() -> None:
    samples = Samples([0.4, 0.2, 0.3], [0.2, 0.2, 0.1], {"a": [9.0], "b": [0.27, 0.24, 5.0]}, {"c": [0.17], "d": [0.5]})
    found = point("shm", (0, 1), 64, 64 << 20, samples)
    assert (found.p50_s, found.p95_s, found.runs_p50_s) == (0.3, 0.4, 0.2)
    assert (found.indexed_copy, found.flat_copy) == ("b", "c")
    assert found.indexed_copy_share == pytest.approx(0.9)
    assert found.flat_copy_share == pytest.approx(0.85)
    assert found.is_within


@pytest.mark.parametrize(
    ("changed", "is_within"),
    [
        ({"indexed_copy_share": 0.84}, False),
        ({"flat_copy_share": 0.79}, False),
        ({"scattered_flat_copy_share": 0.1}, True),
        ({"indexed_copy_share": 0.1, "flat_copy_share": 0.1, "bytes": 1 << 20}, True),
        ({"flat_copy_share": 0.1, "bytes": 63 << 20}, True),
        ({"indexed_copy_share": 0.1, "flat_copy_share": 0.1, "path": "gloo"}, True),
    ],
)
def test_a_share_below_its_bound_is_marked(changed: dict[str, Any], is_within: bool) -> None:
    good = point("shm", (0, 1), 64, 64 << 20, Samples([1.0], [1.0], {"a": [1.0]}, {"b": [1.0]}))
    found = attrs.evolve(good, **changed)
    assert found.is_within is is_within
    curve = Curve([found], {}, 1, 1, 1, 1, "bfloat16", 1, 1, {}, is_summed=False, cold_bytes=1, seed=1)
    assert ("BELOW" in report_lines(curve)[1]) is not is_within


def test_all_pairs_of_the_replicas_are_measured_with_the_same_threads(
    pretended: list[PairOrder], capsys: pytest.CaptureFixture[str]
) -> None:
    code, figures = measured(["--path", "shm", "--replicas", "3", "--threads", "2", "--rounds", "2"], capsys)
    assert code == 0
    assert len(pretended) == 6
    assert {order.threads for order in pretended} == {2}
    assert [(row["blocks"], row["pair"]) for row in figures["points"]][:9] == [
        (blocks, [0, 1]) for blocks in (1, 2, 4, 8, 16, 32, 64, 128, 183)
    ]


def test_whole_transfers_stand_beside_the_path_that_workers_have(
    pretended: list[PairOrder], capsys: pytest.CaptureFixture[str]
) -> None:
    code, figures = measured(["--path", "shm", "gloo", "--rounds", "1", "--blocks", "2", "8", "64"], capsys)
    assert code == 0
    rows = {(row["path"], row["blocks"]): row for row in figures["points"] if row["pair"] == [0, 1]}
    assert rows["shm", 8]["transaction_p50_s"] == pytest.approx(1.008)
    assert rows["shm", 8]["transaction_adds_p50_s"] == pytest.approx(8e-3)
    assert {rows["gloo", blocks]["transaction_p50_s"] for blocks in (2, 8, 64)} == {None}


def test_a_transaction_that_adds_too_much_is_marked(
    pretended: list[PairOrder], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--path", "shm", "--pairs", "0>1", "--rounds", "1", "--blocks", "2", "8", "64"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("shm")]
    assert [line.split()[2] for line in lines if "SLOW" in line] == ["8"]


def test_whole_transfers_that_fail_are_told_in_one_line(
    pretended: list[PairOrder], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(order: WholeOrder) -> dict[tuple[RankPair, int], Times]:
        raise TransactionError("a transfer of 2 blocks was not published: late, without a cause")

    monkeypatch.setattr(transfer, "whole_times", fail)
    assert main(["--path", "shm", "--rounds", "1", "--blocks", "2"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("lmpool bench transfer: a transfer of 2 blocks was not")


def test_bytes_that_differ_fail_the_run(
    pretended: list[PairOrder], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(PretendedPair, "fails", True)
    assert main(["--path", "shm", "--rounds", "1"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "other bytes" in captured.err


def test_a_path_that_is_not_here_is_told_and_has_no_figure(
    pretended: list[PairOrder], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--path", "shm", "cuda-ipc", "nccl", "--blocks", "2", "--rounds", "1"]) == 0
    out = capsys.readouterr().out
    assert "cuda-ipc: not measured, it needs two CUDA devices, and torch sees 0" in out
    assert "nccl: not measured" in out
    code, figures = measured(["--path", "nccl"], capsys)
    assert code == 1
    assert figures["points"] == []
    assert figures["left_out"].keys() == {"nccl"}


def test_help_says_what_was_not_run_on_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "cuda-ipc and nccl were written from documentation and have not been run on hardware" in text
    assert "by gloo and nccl there is no whole transfer, and its figures are null" in text


def test_pairs_that_make_no_sense_are_told_in_one_line(
    pretended: list[PairOrder], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--path", "shm", "--pairs", "0-9"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--replicas", "1"], "--replicas: a pair takes two"),
        (["--blocks", "8", "99999999999"], "99999999999 blocks take pools and plain copies of "),
        (["--head-dim", "99999999"], "64 blocks take pools and plain copies of "),
        (["--streams", "2", "--path", "gloo"], "--streams: workers read each other's blocks by shm or cuda-ipc"),
        (["--model", "m"], "--model is for --streams"),
    ],
)
def test_what_cannot_be_measured_is_told_before_anything_is(
    pretended: list[PairOrder], capsys: pytest.CaptureFixture[str], flags: list[str], told: str
) -> None:
    assert main(flags) == 2
    assert capsys.readouterr().err.startswith(f"lmpool bench transfer: {told}")
    assert not pretended


def test_figures_are_drawn(pretended: list[PairOrder], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    drawn = tmp_path / "curve.svg"
    assert (
        main(["--path", "shm", "gloo", "--rounds", "1", "--plot", str(drawn), "--json", str(tmp_path / "f.json")]) == 0
    )
    assert "<svg" in drawn.read_text()
    assert {row["path"] for row in json.loads((tmp_path / "f.json").read_text())["points"]} == {"shm", "gloo"}
    assert main(["--path", "shm", "--plot", "curve.bmp"]) == 2
    assert "should end in" in capsys.readouterr().err
