"""Streams on every rank, against the real engine of exact integers, and what is made of their gaps."""

import json
from pathlib import Path

import pytest

from lmpool.bench import transfer
from lmpool.bench.streams import Gap, gap_times, stream_blocks
from lmpool.bench.transfer_streams import StreamFigures, StreamOrder, measure_streams, stream_figures, stream_lines
from lmpool.core.ids import SECOND, Nanos
from tests.model_folder import write_tiny_folder


def gap(began: float, ended: float) -> Gap:
    return Gap(0, Nanos(round(began * SECOND)), Nanos(round(ended * SECOND)))


def order(model: str | None, blocks: int = 4) -> StreamOrder:
    return StreamOrder(
        path="shm",
        model=model,
        replicas=2,
        threads=1,
        dtype="auto",
        block_size=16,
        each=2,
        blocks=blocks,
        pairs=((0, 1), (1, 0)),
        windows=2,
        window_s=0.4,
        seed=1,
    )


def test_a_gap_counts_in_the_window_that_holds_all_of_it() -> None:
    gaps = [gap(0.5, 1.5), gap(1.5, 2.0), gap(2.0, 3.5), gap(5.0, 5.25)]
    windows = [(Nanos(SECOND), Nanos(3 * SECOND)), (Nanos(5 * SECOND), Nanos(6 * SECOND))]
    assert gap_times(gaps, windows) == [0.5, 0.25]


def test_the_worse_of_both_ratios_decides() -> None:
    without = [0.01] * 98 + [0.02] * 2
    found = stream_figures(order(None), 7, 2.0, without, [0.015] * 98 + [0.05] * 2)
    assert found.p50_ratio == pytest.approx(1.5)
    assert found.p99_ratio == pytest.approx(2.5)
    assert not found.is_within
    assert "ABOVE" in stream_lines(found)[-1]
    assert "3.5 a second" in stream_lines(found)[-1]
    calm = stream_figures(order(None), 7, 2.0, without, [0.015] * 98 + [0.04] * 2)
    assert "within" in stream_lines(calm)[-1]


def test_streams_run_on_every_rank_beside_transfers_and_without(tmp_path: Path) -> None:
    model = write_tiny_folder(tmp_path / "model", config={"step_ns": 5_000_000})
    found = measure_streams(order(str(model)))
    assert found.transfers > 0
    assert found.undisturbed.count > 0
    assert found.disturbed.count > 0
    assert found.undisturbed.p50_s <= found.undisturbed.p99_s
    assert found.disturbed_s >= 2 * 0.4


def test_the_command_prints_gaps_or_writes_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders: list[StreamOrder] = []

    def pretended(order: StreamOrder) -> StreamFigures:
        orders.append(order)
        return stream_figures(order, 3, 1.0, [0.01], [0.02])

    monkeypatch.setattr(transfer, "measure_streams", pretended)
    file = tmp_path / "gaps.json"
    assert transfer.main(["--streams", "3", "--blocks", "8", "--model", "m", "--json", str(file)]) == 0
    assert (orders[0].each, orders[0].blocks, orders[0].model) == (3, 8, "m")
    assert "beside transfers" in capsys.readouterr().out
    assert json.loads(file.read_text())["p99_ratio"] == pytest.approx(2.0)


def test_streams_have_room_beside_transfers() -> None:
    assert stream_blocks(2, 16) * 16 >= 2 * (33 + 256)
