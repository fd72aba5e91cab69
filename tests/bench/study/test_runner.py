import json
import shutil
from pathlib import Path

import pytest

from lmpool.bench.study.folder import (
    LEDGER,
    Folder,
    StudyError,
    begin_folder,
    open_folder,
)
from lmpool.bench.study.matrix import matrix
from lmpool.bench.study.runner import run_study
from lmpool.bench.trial.evidence import COUNTERS, REQUESTS
from lmpool.bench.trial.spec import TrialSpec, Venue
from tests.bench.study.made import PLAN, Bench

TRIALS = 12


def _begin(path: Path, text: str = PLAN) -> Folder:
    return begin_folder(path, text.encode(), "plan.toml", Venue.SIMULATOR)


def _run(path: Path, bench: Bench, text: str = PLAN) -> tuple[Folder, list[str], list[str]]:
    told: list[str] = []
    folder, bad = run_study(_begin(path, text), bench.perform, told.append)
    return folder, bad, told


def test_every_trial_runs_once_in_the_order_of_the_plan(tmp_path: Path) -> None:
    bench = Bench()
    folder, bad, told = _run(tmp_path / "study", bench)
    assert bad == []
    assert [entry.trial for entry in folder.ledger] == [trial.name for trial in matrix(folder.plan)]
    assert len(bench.performed) == TRIALS
    assert told[0].startswith(f"trial 1 of {TRIALS}: ")
    assert " left: " in told[-1]
    assert sorted(path.name for path in (tmp_path / "study/trials").iterdir()) == sorted(
        trial.name for trial in matrix(folder.plan)
    )


def test_a_study_that_goes_on_skips_whole_trials_and_repeats_a_torn_one(tmp_path: Path) -> None:
    folder, _, _ = _run(tmp_path / "study", Bench())
    absent, torn = matrix(folder.plan)[3], matrix(folder.plan)[5]
    shutil.rmtree(folder.trial(absent))
    (folder.trial(torn) / COUNTERS).unlink()
    ledger = folder.path / LEDGER
    kept = [
        line for line in ledger.read_text().splitlines() if json.loads(line)["trial"] not in (absent.name, torn.name)
    ]
    ledger.write_text("".join(f"{line}\n" for line in kept) + '{"trial": "cut')

    bench = Bench()
    folder, bad, told = _run(tmp_path / "study", bench)
    assert bad == []
    assert [(spec.arm, spec.repetition) for spec in bench.performed] == [
        (trial.arm, trial.repetition) for trial in (absent, torn)
    ]
    assert any("torn by an interruption" in line for line in told)
    assert [path.name for path in folder.put_aside(torn, "torn")] == [f"{torn.name}.torn-1"]
    assert len(folder.ledger) == TRIALS
    assert _run(tmp_path / "study", bench)[0].ledger == folder.ledger
    assert len(bench.performed) == 2


def test_an_interruption_leaves_what_ended_and_the_same_study_goes_on(tmp_path: Path) -> None:
    bench = Bench()

    def interrupted(spec: TrialSpec, folder: Path, log: Path) -> int:
        if len(bench.performed) == 4:
            log.write_text("began\n")
            raise KeyboardInterrupt
        return bench.perform(spec, folder, log)

    with pytest.raises(KeyboardInterrupt):
        run_study(_begin(tmp_path / "study"), interrupted, lambda _: None)
    assert len(open_folder(tmp_path / "study").ledger) == 4
    folder, bad, _ = _run(tmp_path / "study", bench)
    assert bad == []
    assert len(bench.performed) == len(folder.ledger) == TRIALS


def test_a_trial_that_ended_before_its_line_was_written_is_not_run_again(tmp_path: Path) -> None:
    folder, _, _ = _run(tmp_path / "study", Bench())
    lines = (folder.path / LEDGER).read_text().splitlines(keepends=True)
    (folder.path / LEDGER).write_text("".join(lines[:-1]))
    bench = Bench()
    again, bad, _ = _run(tmp_path / "study", bench)
    assert (bad, bench.performed) == ([], [])
    assert again.ledger[-1].evidence == folder.ledger[-1].evidence


def test_a_trial_that_fails_once_is_kept_beside_and_tried_again(tmp_path: Path) -> None:
    text = PLAN.replace("[100, 200]", "[100]")
    folder, bad, told = _run(tmp_path / "study", Bench({("default", 2): 1}), text)
    (trial,) = [one for one in matrix(folder.plan) if (one.arm, one.repetition) == ("default", 2)]
    assert bad == []
    (failed,) = folder.put_aside(trial, "failed")
    assert (failed / "log.txt").read_text() == "began\nended\n"
    assert [(entry.attempt, entry.is_valid) for entry in folder.ledger if entry.trial == trial.name] == [
        (1, False),
        (2, True),
    ]
    assert any("a replica was lost" in line for line in told)


def test_a_trial_that_fails_twice_is_named_and_left_alone(tmp_path: Path) -> None:
    text = PLAN.replace("[100, 200]", "[100]")
    folder, bad, _ = _run(tmp_path / "study", Bench({("default", 2): 9}), text)
    assert [name.split("_")[-2:] for name in bad] == [["default", "r2"]]
    bench = Bench()
    again, still_bad, _ = _run(tmp_path / "study", bench, text)
    assert (still_bad, bench.performed) == (bad, [])
    assert again.ledger == folder.ledger


def test_a_trial_without_evidence_is_told_with_its_last_words(tmp_path: Path) -> None:
    def dies(spec: TrialSpec, folder: Path, log: Path) -> int:
        assert spec.arm in ("round-robin", "default")
        assert not folder.exists()
        log.write_text("loading\nno memory is left\n")
        return 1

    folder, bad = run_study(_begin(tmp_path / "study"), dies, lambda _: None)
    assert len(bad) == TRIALS
    assert len(folder.ledger) == 2 * TRIALS
    assert folder.ledger[0].problems == ("it left no evidence (exit code 1): no memory is left",)


def test_another_plan_or_venue_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    _begin(tmp_path / "study")
    with pytest.raises(StudyError, match="has begun with another plan"):
        _begin(tmp_path / "study", PLAN.replace("seed = 7", "seed = 8"))
    with pytest.raises(StudyError, match="has begun in the venue simulator"):
        begin_folder(tmp_path / "study", PLAN.encode(), "plan.toml", Venue.LIVE)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    with pytest.raises(StudyError, match="is not empty and no study"):
        _begin(tmp_path / "other")


def test_a_plan_that_was_changed_in_its_folder_is_refused(tmp_path: Path) -> None:
    folder = _begin(tmp_path / "study")
    (folder.path / "plan.toml").write_bytes(folder.plan_bytes + b"\n# later thoughts\n")
    with pytest.raises(StudyError, match="not the plan that the study began with"):
        open_folder(folder.path)


def test_evidence_that_was_changed_stops_a_study_from_going_on(tmp_path: Path) -> None:
    folder, _, _ = _run(tmp_path / "study", Bench())
    (folder.trial(matrix(folder.plan)[0]) / REQUESTS).write_bytes(b"")
    with pytest.raises(StudyError, match="is not as it was when it ended"):
        _run(tmp_path / "study", Bench())


def test_loads_after_the_one_that_ended_a_search_are_not_run(tmp_path: Path) -> None:
    """By hand the default wins at every load, so it is asked to win as the other arm."""
    text = PLAN.replace("[100, 200]", "[100]").replace("rates = [1.0]", "rates = [1.0, 2.0, 4.0]")
    ends = '\n[crossover]\narms = ["round-robin"]\nagainst = "default"\nmetric = "ttft_mean_s"\n'
    bench = Bench()
    folder, bad, _ = _run(tmp_path / "ends", bench, text + ends)
    assert bad == []
    assert {spec.rate for spec in bench.performed} == {1.0}
    goes_on = '\n[crossover]\narms = ["default"]\nagainst = "round-robin"\nmetric = "ttft_mean_s"\n'
    bench = Bench()
    _run(tmp_path / "goes-on", bench, text + goes_on)
    assert [spec.rate for spec in bench.performed] == [1.0] * 6 + [2.0] * 6 + [4.0] * 6
    assert folder.plan.crossover is not None
