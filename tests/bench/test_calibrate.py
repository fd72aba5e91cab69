import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from lmpool import cli
from lmpool.bench import calibrate
from lmpool.bench.calibrate import BLOCKS, copy_point, main
from lmpool.bench.transfer_pair import Blocks, PairOrder, WrongBytes
from lmpool.io.calibration import check_pairs, read_calibration

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


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Steps come from a script, copies from `PretendedPair`."""
    monkeypatch.setattr(PretendedPair, "orders", [], raising=False)
    monkeypatch.setattr(calibrate, "MeasuredPair", PretendedPair)
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
            assert point.residual_p50_s is point.residual_p95_s is None
    out = capsys.readouterr().out
    assert f"written to {pretended}" in out
    assert out.count("0>1") == len(BLOCKS)
    assert "yes" in out
    assert "no" in out


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
        (["--replicas", "1"], "two replicas"),
        (["--rounds", "0"], "one round"),
        (["--pairs", "0-7"], "'0-7' is no pair of two of the ranks 0 to 1"),
        (["--output", "/nowhere/file"], "cannot write /nowhere/file"),
    ],
)
def test_wrong_flags_are_told(pretended: Path, capsys: pytest.CaptureFixture[str], flags: list[str], told: str) -> None:
    assert main(["--rounds", "1", "--output", str(pretended), *flags]) == 1
    assert told in capsys.readouterr().err


def test_the_p95_of_few_rounds_is_the_longest() -> None:
    point = copy_point(4, [0.5, 0.1, 0.2, 0.3])
    assert (point.copy_p50_s, point.copy_p95_s) == (0.25, 0.5)
    assert copy_point(4, [float(number) for number in range(1, 41)]).copy_p95_s == 38


def test_the_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["calibrate", "--help"])
    assert ended.value.code == 0
    assert "Residuals" in capsys.readouterr().out
