import json
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from lmpool import cli
from lmpool.bench import calibrate
from lmpool.bench.calibrate import BLOCKS, copy_point, main
from lmpool.bench.calibrate_check import HELD_OUT, check
from lmpool.bench.calibrate_transactions import Session, SessionOrder, with_residuals
from lmpool.bench.transactions import Transaction
from lmpool.bench.transfer_pair import Arms, Blocks, PairOrder, WrongBytes
from lmpool.core.ids import MILLISECOND, Rank
from lmpool.core.placement.price import Pair, TransferPrices
from lmpool.io.calibration import CalibratedPair, CopyPoint, check_pairs, read_calibration, transfer_profile
from tests.io.test_calibration import CALIBRATION

INTERPRETER = sys.executable
CURVE = {
    "identity": {"revision": "abc", "kv_dtype": "float32", "kv_layout": "any/2x2x2x8", "block_size": 16},
    "shape": {"layers": 2, "block_size": 16, "kv_heads": 2, "head_dim": 8, "dtype": "float32"},
    "block_bytes": 4096,
    "device": "cpu",
    "rates": {"step": 2e6, "prefill": 1e6, "prefill_context": 2.0, "decode": 2e5, "decode_context": 10.0},
    "prefills": [{"rows": 1, "context": 0, "tokens": 64, "seconds": 0.02}],
    "decodes": [{"rows": 8, "context": 0, "tokens": 1, "seconds": 0.01}],
}


class PretendedPair:
    """A block takes a millisecond."""

    arms = Arms((), (), 48 << 20)
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
        assert max(*source, *target) < self.orders[-1].source_pool["blocks"]
        if self.fails:
            raise WrongBytes("shm: blocks have arrived with other bytes")
        return 1e-3 * len(source)


def pretended_session(order: SessionOrder, done: Callable[[Transaction], None]) -> Session:
    """Beside 1.2 times their copy they take 12 ms; one in four takes 20 ms more, and all twice as long beside steps."""

    def run(sizes: Sequence[int], times: float) -> tuple[Transaction, ...]:
        found: list[Transaction] = []
        for pair in order.pairs:
            for blocks in sizes:
                for number in range(order.rounds):
                    took = 12e-3 + 1.2e-3 * blocks + (20e-3 if number % 4 == 3 else 0)
                    found.append(Transaction(pair, blocks, times * took, 1e-3 * blocks))
                    done(found[-1])
        return tuple(found)

    assert order.cold_bytes == 48 << 20
    return Session(run(order.sizes, 1), run(order.held_out, 0.999), run(order.held_out, 2))


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Steps come from a script, copies from `PretendedPair`, whole transfers from `pretended_session`."""
    monkeypatch.setattr(PretendedPair, "orders", [], raising=False)
    monkeypatch.setattr(calibrate, "MeasuredPair", PretendedPair)
    monkeypatch.setattr(calibrate, "measured_session", pretended_session)
    monkeypatch.setattr(calibrate, "device_facts", lambda: {"cuda_devices": 0, "has_nccl": False})
    says(monkeypatch, tmp_path, [{"told": "loading"}, {"done": 1, "of": 2}, {"done": 2, "of": 2}, {"curve": CURVE}])
    return tmp_path / "out.json"


def says(monkeypatch: pytest.MonkeyPatch, folder: Path, answers: list[dict[str, Any]]) -> None:
    """The process that measures steps says these lines and ends."""
    script = folder / "python"
    lines = "".join(f"print({json.dumps(json.dumps(answer))})\n" for answer in answers)
    script.write_text(f"#!{INTERPRETER}\n{lines}")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(script))


def test_the_file_has_steps_and_every_pair_and_size(pretended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "--replicas", "3", "--rounds", "3", "--output", str(pretended)]) == 0
    found = read_calibration(pretended)
    check_pairs(found, [(one, other) for one in range(3) for other in range(3) if one != other])
    assert (found.identity.revision, found.block_bytes, found.device) == ("abc", 4096, "cpu")
    assert found.interference is None
    for pair in found.pairs:
        assert pair.path == "shm"
        assert [point.blocks for point in pair.points] == list(BLOCKS)
        for point in pair.points:
            assert point.copy_p50_s == point.copy_p95_s == pytest.approx(1e-3 * point.blocks)
            assert point.residual_p50_s == pytest.approx(12e-3)
            assert point.residual_p95_s == pytest.approx(12e-3)
    out = capsys.readouterr().out
    assert f"written to {pretended}" in out
    assert out.count("0>1") == len(BLOCKS)
    assert "yes" in out
    assert "no" in out


def test_prices_are_what_whole_transfers_took(pretended: Path) -> None:
    assert main(["--rounds", "8", "--output", str(pretended)]) == 0
    prices = TransferPrices(transfer_profile(read_calibration(pretended)))
    for blocks in (1, 6, 64):
        price = prices.price(Pair(Rank(1), Rank(0)), blocks)
        assert price.median_ns / MILLISECOND == pytest.approx(12 + 1.2 * blocks)
        assert price.p95_ns / MILLISECOND == pytest.approx(32 + 1.2 * blocks)


def test_by_a_path_that_workers_have_not_residuals_are_left_out(pretended: Path) -> None:
    assert main(["--rounds", "1", "--path", "gloo", "--output", str(pretended)]) == 0
    points = [point for pair in read_calibration(pretended).pairs for point in pair.points]
    assert {(point.residual_p50_s, point.residual_p95_s) for point in points} == {(None, None)}


def test_a_check_is_of_sizes_between_and_bound_where_replicas_are_idle(
    pretended: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = pretended.with_name("check.json")
    code = main(["--rounds", "20", "--check", "--json", str(figures), "--output", str(pretended)])
    found = json.loads(figures.read_text())
    assert {row["blocks"] for row in found["idle"]["sizes"]} == set(HELD_OUT)
    assert not set(HELD_OUT) & set(BLOCKS)
    assert found["idle"]["error"] == pytest.approx(0.001, rel=0.01)
    assert found["loaded"]["error"] == pytest.approx(0.5)
    assert found["idle"]["covered"] == 1
    assert (code, found["idle"]["is_within"]) == (1, False), "a P95 that nothing exceeds is too high"
    assert "OUT OF the bounds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("over", "took_ms", "error", "is_within"),
    [(1, 10, 0, True), (1, 12.5, 0.2, True), (3, 10, 0, False), (0, 10, 0, False), (1, 16, 0.375, False)],
)
def test_a_check_fails_on_either_bound(over: int, took_ms: float, error: float, is_within: bool) -> None:
    """Of twenty times so many lie beyond the P95; 10 ms are predicted."""
    point = CopyPoint(1, 0.01, 0.03, 0.0, 0.0)
    calibration = attrs.evolve(CALIBRATION, interference=1.0, pairs=(CalibratedPair(0, 1, "shm", (point,)),))
    took = [took_ms / 1e3] * (20 - over) + [0.031] * over
    found = check(calibration, [Transaction((0, 1), 1, one, 0.005) for one in took])
    assert found.error == pytest.approx(error)
    assert found.covered == pytest.approx(1 - over / 20)
    assert found.is_within is is_within


def test_a_price_is_what_was_seen_also_where_chains_are_copied_faster_than_scattered_blocks() -> None:
    pair = CalibratedPair(0, 1, "shm", (CopyPoint(2, 0.01, 0.02, None, None),))
    made = with_residuals(pair, [Transaction((0, 1), 2, took, 0.004) for took in (0.005, 0.006, 0.008)], 1.2)
    calibration = attrs.evolve(CALIBRATION, pairs=(made,))
    price = TransferPrices(transfer_profile(calibration)).price(Pair(Rank(0), Rank(1)), 2)
    assert price.median_ns / MILLISECOND == pytest.approx(6)
    assert price.p95_ns / MILLISECOND == pytest.approx(8)


def test_pools_have_the_form_of_the_model(pretended: Path) -> None:
    assert main(["--pairs", "1>0", "--rounds", "1", "--path", "gloo", "--output", str(pretended)]) == 0
    (order,) = PretendedPair.orders
    assert order.path == "gloo"
    assert order.source_pool == order.target_pool
    assert {name: order.source_pool[name] for name in CURVE["shape"]} == CURVE["shape"]  # type: ignore[attr-defined]
    assert order.source_pool["device"] == "cpu"


def test_wrong_bytes_end_it_without_a_file(
    pretended: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(PretendedPair, "fails", True)
    assert main(["--output", str(pretended)]) == 1
    assert "lmpool calibrate: shm: blocks have arrived with other bytes" in capsys.readouterr().err
    assert not pretended.exists()


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([{"told": "x"}, {"failed": "no model 'y'; check the path"}], "lmpool calibrate: no model 'y'; check the path"),
        ([{"done": 1, "of": 2}], "the process that measures steps has ended with code 0"),
    ],
)
def test_steps_that_cannot_be_measured_are_told(
    pretended: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answers: list[dict[str, Any]],
    told: str,
) -> None:
    says(monkeypatch, pretended.parent, answers)
    assert main(["--output", str(pretended)]) == 1
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--replicas", "1"], "--replicas: a pair takes two"),
        (["--replicas", "65"], "--replicas: a pair takes two, and a server has at most 64"),
        (["--kv-blocks", "15"], "--kv-blocks: below 16 too few steps fit"),
        (["--path", "nccl"], "--path nccl: it needs two CUDA devices, and torch sees 0"),
        (["--rounds", "0"], "argument --rounds: 0 is less than 1"),
        (["--threads", "0"], "argument --threads: 0 is less than 1"),
        (["--block-size", "3"], "argument --block-size: 3 is not a power of two from 8 to 512"),
        (["--pairs", "0-7"], "'0-7' is no pair of two of the ranks 0 to 1"),
        (["--output", "/nowhere/file"], "argument --output: /nowhere/file: there is no folder /nowhere"),
        (["--json", "figures"], "--json is for the figures of --check"),
    ],
)
def test_wrong_flags_are_told_before_anything_is_measured(
    pretended: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    told: str,
) -> None:
    monkeypatch.setattr(calibrate, "measured_steps", lambda *_: pytest.fail("steps were measured"))
    try:
        code: object = main(["--rounds", "1", "--output", str(pretended), *flags])
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert told in capsys.readouterr().err


def test_what_workers_cannot_do_cannot_be_checked(pretended: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "1", "--output", str(pretended), "--check", "--path", "gloo"]) == 1
    assert "workers on cpu do not transfer by gloo" in capsys.readouterr().err


def test_the_p95_of_few_rounds_is_the_longest() -> None:
    point = copy_point(4, [0.5, 0.1, 0.2, 0.3])
    assert (point.copy_p50_s, point.copy_p95_s) == (0.25, 0.5)
    assert copy_point(4, [float(number) for number in range(1, 41)]).copy_p95_s == 38


def test_the_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["calibrate", "--help"])
    assert ended.value.code == 0
    assert "what they take beside the copy is the residual" in capsys.readouterr().out
