"""The swarm: every law holds in every seed, the same seed is the same run, and what should happen does happen."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from lmpool.core.ledger import Ledger
from lmpool.core.limits import BLOCK_SIZE_MIN
from lmpool.core.route import POLICIES
from lmpool.core.transfer.transfers import TransferOutcome
from lmpool.sim.swarm import __main__ as command
from lmpool.sim.swarm.hunt import run_seeds
from lmpool.sim.swarm.knobs import draw_knobs
from lmpool.sim.swarm.narrative import Narrative
from lmpool.sim.swarm.run import Result, run_knobs, run_seed

ROOT = Path(__file__).parents[2]
SEEDS = 200
GROUP = 5
STORED = ROOT / command.KEPT
EVENTS_MIN = 2_000

MUST_HAPPEN = (
    "preempted",
    "reclaimed",
    "refused",
    "resumed",
    "routed without control",
    "stale",
    "steps failed",
    "tokens cached",
    *(f"struck by {kind}" for kind in ("hold", "stall", "cut", "crash_worker", "crash_control", "crash_ingress")),
    "struck by drain",
    "struck by clear_caches",
    *(f"requests {outcome}" for outcome in ("complete", "cancelled", "busy", "deadline", "failed", "never fits")),
    *(f"transfers {outcome.value}" for outcome in TransferOutcome),
    *(f"transfers aborted while {phase}" for phase in ("preparing", "copying", "confirming", "publishing")),
    *(f"sides {end}" for end in ("finalized", "aborted", "expired", "control lost", "copy failed", "send failed")),
    "sides length wrong",
    *(f"transfers: {refusal}" for refusal in ("chain missing", "anchor missing", "already resident", "no blocks")),
    "transfers: pins full",
    *(f"transfers: {denial}" for denial in ("rank absent", "same rank", "source busy", "target busy")),
    "transfers placed to pull",
    "blocks transferred",
    "blocks freed by moves",
    "sequences whose blocks came",
    "awaited blocks missed",
)


def stored_seeds() -> list[int]:
    return [int(line.split()[0]) for line in STORED.read_text().splitlines() if line and not line.startswith("#")]


def assert_all_hold(results: Sequence[Result]) -> None:
    assert [f"seed {result.seed}: {result.violation}" for result in results if result.violation] == []


@pytest.mark.parametrize("first", range(0, SEEDS, GROUP))
def test_every_law_holds_in_every_seed(first: int) -> None:
    results = [run_seed(seed) for seed in range(first, first + GROUP)]
    assert_all_hold(results)
    assert min(result.events for result in results) >= EVENTS_MIN
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(dict(result.counts))
    assert counts["requests complete"] > GROUP


@pytest.mark.parametrize("seed", stored_seeds())
def test_what_once_failed_holds(seed: int) -> None:
    assert_all_hold([run_seed(seed)])


def test_everything_that_should_happen_does() -> None:
    counts: Counter[str] = Counter()
    for result in run_seeds(range(24), jobs=1):
        counts.update(dict(result.counts))
    assert [what for what in MUST_HAPPEN if not counts[what]] == []


def test_seeds_draw_all_sizes_and_policies_and_some_have_no_faults() -> None:
    knobs = [draw_knobs(seed) for seed in range(400)]
    assert {knob.control.policy for knob in knobs} == POLICIES.keys()
    assert {len(knob.workers) for knob in knobs} == {3, 4, 5, 6}
    assert {knob.steps_in_flight_max for knob in knobs} == {1, 2}
    assert all(worker.blocks < 64 for knob in knobs for worker in knob.workers)
    assert all(knob.block_size >= BLOCK_SIZE_MIN and knob.events >= EVENTS_MIN for knob in knobs)
    calm = [knob for knob in knobs if not any((knob.faults.hold, knob.faults.stall, knob.faults.cut))]
    assert any(not any((knob.faults.worker_crash, knob.faults.control_crash, knob.faults.delay)) for knob in calm)
    still = [knob for knob in knobs if not any((knob.transfers.ordered, knob.transfers.pulls))]
    assert 0 < len(still) < len(knobs) / 2


def test_a_seed_without_transfers_has_none() -> None:
    seed = next(seed for seed in range(40) if not draw_knobs(seed).transfers.ordered)
    assert not [what for what, count in run_seed(seed).counts if "transfer" in what and count]


def digests(seeds: int, hash_seed: str) -> str:
    arguments = ["--digests", "--seeds", str(seeds), "--from", "40", "--jobs", "1"]
    return subprocess.run(
        [sys.executable, "-m", "lmpool.sim.swarm", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_same_seed_is_the_same_run_under_every_hash_seed() -> None:
    first, second = digests(6, "1"), digests(6, "2")
    assert first == second
    assert len({line.split()[1] for line in first.splitlines()}) == 6


def test_processes_side_by_side_change_no_run() -> None:
    alone = list(run_seeds(range(3, 9), jobs=1))
    assert list(run_seeds(range(3, 9), jobs=2)) == alone


def test_the_story_of_a_seed_ends_with_what_did_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "abandon", lambda *_: False)
    lines: list[str] = []
    narrative = Narrative(lines.append)
    result = run_knobs(draw_knobs(0), narrative)
    narrative.close()
    assert "bookings" in result.violation
    assert lines[-1].endswith(f"VIOLATION {result.violation}")
    assert len(lines) >= result.events
    times = [float(line.split()[0]) for line in lines]
    assert times == sorted(times)
    assert any("hears" in line and "RouteAsked(request=r" in line for line in lines)


def test_a_story_changes_nothing() -> None:
    narrative = Narrative(lambda _: None)
    assert run_knobs(draw_knobs(3), narrative) == run_seed(3)


def test_the_command_counts_keeps_and_answers_with_its_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept = tmp_path / "seeds.txt"
    monkeypatch.setattr(command, "KEPT", kept)
    monkeypatch.setattr(sys, "argv", ["sim", "--seeds", "2", "--jobs", "1", "--keep"])
    assert command.main() == 0
    assert "2 seeds" in capsys.readouterr().out
    assert not kept.exists()
    monkeypatch.setattr(Ledger, "abandon", lambda *_: False)
    assert command.main() == 1
    told = capsys.readouterr().out
    assert "seed 0: FAILED" in told
    assert "tools/sim --seed 0 --timeline" in told
    assert kept.read_text().startswith("0  AssertionError")
