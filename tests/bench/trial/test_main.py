"""Trials as processes have them: exit codes, and a live run from begin to end on exact integers."""

import json
from pathlib import Path

import attrs
import pytest

from lmpool.bench.load.counters import CacheCondition
from lmpool.bench.trial.__main__ import main
from lmpool.bench.trial.checks import problems
from lmpool.bench.trial.evidence import read_evidence
from lmpool.bench.trial.metrics import METRICS, metrics
from lmpool.bench.trial.paced import SLOWNESS
from lmpool.bench.trial.spec import PACED, TrialSpec, Venue, spec_text
from lmpool.core.ids import SECOND
from lmpool.sim.step_time import ACCELERATOR_DEFAULT, named_rates
from tests.bench.trial.made import SPEC
from tests.model_folder import write_tiny_folder

SIMULATED = attrs.evolve(SPEC, venue=Venue.SIMULATOR)


def _main(folder: Path, spec: TrialSpec) -> int:
    path = folder / "spec.json"
    path.write_text(spec_text(spec))
    return main([str(path), str(folder / "trial")])


def test_a_live_trial_leaves_valid_evidence(tmp_path: Path) -> None:
    model = write_tiny_folder(tmp_path / "model")
    spec = attrs.evolve(SPEC, model=str(model), arm="routing", late_max_s=5.0)
    assert _main(tmp_path, spec) == 0
    evidence = read_evidence(tmp_path / "trial")
    assert (evidence.spec, problems(evidence)) == (spec, ())
    assert evidence.workload.requests == 12
    found = metrics(evidence)
    assert [name for name in METRICS if name not in found] == []
    assert found["routed_0"] + found["routed_1"] == 12
    assert found["cached_tokens"] > 0
    assert evidence.settings["routing"]["policy"] == "default"
    assert evidence.settings["pool"]["threads"] == 1
    assert min(one.planned_ns for one in evidence.requests) == 0
    assert evidence.outcome.wall_s > found["completion_s"]


def test_a_paced_trial_takes_the_time_of_its_steps(tmp_path: Path) -> None:
    """Every answer takes at least a step for each of its tokens."""
    spec = attrs.evolve(SPEC, model=PACED, arm="full", scale=0.02, kv_blocks=800, late_max_s=5.0)
    assert _main(tmp_path, spec) == 0
    evidence = read_evidence(tmp_path / "trial")
    assert problems(evidence) == ()
    step_s = SLOWNESS * named_rates(ACCELERATOR_DEFAULT).step / SECOND
    for one in evidence.requests:
        tokens = sum(piece.tokens or 0 for piece in one.pieces)
        assert one.sent_ns is not None
        assert one.closed_ns - one.sent_ns >= tokens * step_s * SECOND


def test_primed_live_caches_know_what_is_asked_and_only_the_second_asking_is_told(tmp_path: Path) -> None:
    model = write_tiny_folder(tmp_path / "model")
    cache = CacheCondition.PRIMED
    spec = attrs.evolve(SPEC, model=str(model), arm="session", cache=cache, kv_blocks=800, late_max_s=5.0)
    assert _main(tmp_path, spec) == 0
    evidence = read_evidence(tmp_path / "trial")
    assert len(evidence.requests) == len(evidence.decisions) == 12
    assert min(decision.number for decision in evidence.decisions) > 12
    assert metrics(evidence)["reuse"] > 0.8 > evidence.workload.sharing.tokens


def test_progress_is_told_in_lines_where_nobody_watches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(tmp_path, SIMULATED) == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert lines[-1] == {"ended": 12, "requests": 12}
    assert read_evidence(tmp_path / "trial").outcome.began_at


def test_a_trial_that_is_not_valid_leaves_its_evidence_and_tells_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main(tmp_path, attrs.evolve(SIMULATED, kv_blocks=6)) == 1
    assert "requests failed" in capsys.readouterr().err
    assert problems(read_evidence(tmp_path / "trial"))


def test_what_cannot_be_is_usage_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(tmp_path, attrs.evolve(SIMULATED, arm="best")) == 2
    assert _main(tmp_path, attrs.evolve(SIMULATED, workload="no-such-file.jsonl")) == 2
    assert _main(tmp_path, attrs.evolve(SIMULATED, rates="no-such-rates")) == 1
    assert not (tmp_path / "trial").exists()
    (tmp_path / "trial").mkdir()
    assert _main(tmp_path, SIMULATED) == 2
    assert "there already" in capsys.readouterr().err
