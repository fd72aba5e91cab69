"""Live trials against simulated ones: what differs is found, what is equal is told."""

import json
from pathlib import Path

import attrs
import pytest

from lmpool import cli
from lmpool.bench import fidelity, fidelity_trials
from lmpool.bench.fidelity import Fidelity, main, report_lines
from lmpool.bench.fidelity_figures import exact_lines, exactness, timed, timed_lines
from lmpool.bench.fidelity_trials import (
    LOADS,
    FidelitySettings,
    exact_spec,
    loaded_spec,
    pools,
    ran,
    write_profile,
)
from lmpool.bench.trial.evidence import Evidence, write_evidence
from lmpool.bench.trial.kept import Kept
from lmpool.bench.trial.simulated import simulate
from lmpool.bench.trial.spec import TrialSpec, check_spec
from lmpool.bench.trial.workload import trial_trace
from lmpool.core.ids import Nanos, Rank
from lmpool.core.rates import Rates
from lmpool.sim.step_time import read_profile
from tests.bench.trial.made import MACHINE

SETTINGS = FidelitySettings(
    model=None,
    workload="shared-prefix-x1",
    requests=48,
    scale=0.1,
    replicas=2,
    block_size=16,
    step_tokens=128,
    threads=1,
    dtype="auto",
    arm="routing",
    repetitions=2,
    seed=1,
)
RATES = Rates(2e6, 1e5, 2.0, 2e5, 10.0)


def simulation(spec: TrialSpec) -> Evidence:
    return simulate(fidelity_trials.simulated(spec, None), MACHINE, lambda _: None)


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return simulation(exact_spec(SETTINGS, fidelity_trials.EXACT[0]))


def test_equal_trials_have_no_difference(evidence: Evidence) -> None:
    found = exactness("one at a time", evidence, evidence)
    assert found.differences == ()
    assert (found.requests, found.cached_tokens > 0) == (48, True)
    assert "equal" in exact_lines(found)[0]


def test_whatever_is_counted_differently_is_named(evidence: Evidence) -> None:
    requests = list(evidence.requests)
    requests[3] = attrs.evolve(requests[3], cached_tokens=(requests[3].cached_tokens or 0) + 16)
    decisions = list(evidence.decisions)
    assert decisions[5].rank is not None
    decisions[5] = attrs.evolve(decisions[5], rank=Rank(1 - decisions[5].rank))
    after = evidence.counters.after
    ranks = list(after.ranks)
    ranks[0] = attrs.evolve(ranks[0], routed=99, tokens_computed=0, tokens_cached=1, preemptions=2)
    counters = attrs.evolve(evidence.counters, after=attrs.evolve(after, ranks=tuple(ranks)))
    other = attrs.evolve(evidence, requests=tuple(requests), decisions=tuple(decisions), counters=counters)
    found = exactness("one at a time", other, evidence)
    assert [(each.where, each.what) for each in found.differences] == [
        ("request 3", "cached tokens"),
        ("request 5", "rank"),
        ("rank 0", "routed"),
        ("rank 0", "tokens computed"),
        ("rank 0", "tokens cached"),
        ("rank 0", "preemptions"),
    ]
    assert "6 counts DIFFER" in exact_lines(found)[0]
    assert not Fidelity(SETTINGS, None, (found,), (), ()).is_exact


def test_a_missing_answer_is_a_difference(evidence: Evidence) -> None:
    shorter = attrs.evolve(evidence, requests=evidence.requests[:-1])
    assert exactness("x", shorter, evidence).differences[0].what == "requests"


def test_pools_hold_what_their_names_say() -> None:
    trace = trial_trace(fidelity_trials.base_spec(SETTINGS))
    found = pools(trace, 16)
    assert found["scarce"] < found["half"] < found["roomy"]
    roomy = simulation(exact_spec(SETTINGS, fidelity_trials.EXACT[1]))
    scarce = simulation(exact_spec(SETTINGS, fidelity_trials.EXACT[0]))
    free = [rank.blocks_free for rank in roomy.counters.after.ranks]
    assert min(free) > 0, "nothing was reclaimed"
    assert [rank.blocks_free for rank in scarce.counters.after.ranks] != free


def test_loads_are_trials_that_can_be() -> None:
    for load in LOADS:
        spec = loaded_spec(SETTINGS, load)
        check_spec(spec)
        assert spec.in_flight == load.in_flight * 2


def test_thrashing_preempts_in_the_simulator() -> None:
    settings = attrs.evolve(SETTINGS, requests=96, scale=0.2)
    found = simulation(loaded_spec(settings, LOADS[-1]))
    assert sum(rank.preemptions for rank in found.counters.after.ranks) > 0


def test_a_prediction_lies_inside_the_interval_or_not(evidence: Evidence) -> None:
    slow = [simulation(attrs.evolve(loaded_spec(SETTINGS, LOADS[0]), seed=seed)) for seed in (1, 2, 3)]
    (ttft, throughput) = timed("low", slow, slow[1])
    assert ttft.runs == 3
    assert ttft.is_inside
    assert throughput.is_inside
    (ttft, _) = timed("low", slow[:1], slow[0])
    assert (ttft.error, ttft.live_half, ttft.is_inside) == (0, None, False)
    far = attrs.evolve(
        slow[0], requests=tuple(attrs.evolve(one, planned_ns=Nanos(-(10**12))) for one in slow[0].requests)
    )
    (ttft, _) = timed("low", slow, far)
    assert not ttft.is_inside
    assert "outside" in timed_lines([ttft])[1]


def test_a_whole_trial_is_not_run_again_and_another_is_put_aside(
    tmp_path: Path, evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    performed: list[TrialSpec] = []

    def perform(spec: TrialSpec, folder: Path, log: Path) -> int:
        performed.append(spec)
        write_evidence(folder, attrs.evolve(evidence, spec=spec))
        return 0

    monkeypatch.setattr(fidelity_trials, "perform_trial", perform)
    told: list[str] = []
    for spec in (evidence.spec, evidence.spec, attrs.evolve(evidence.spec, repetition=2)):
        assert ran(spec, tmp_path, "trial", told.append).problems == ()
    assert [spec.repetition for spec in performed] == [1, 2]
    assert told == ["trial", "trial"]
    assert (tmp_path / "trial.old-1").is_dir()


def test_a_trial_that_leaves_nothing_is_told_with_its_last_words(
    tmp_path: Path, evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    def perform(spec: TrialSpec, folder: Path, log: Path) -> int:
        log.write_text("first\nno such model\n")
        return 1

    monkeypatch.setattr(fidelity_trials, "perform_trial", perform)
    found = ran(evidence.spec, tmp_path, "trial", lambda _: None)
    assert found.evidence is None
    assert found.problems[0].endswith("no such model")


def test_a_profile_is_what_the_simulator_reads(tmp_path: Path) -> None:
    write_profile(tmp_path / "rates.json", RATES)
    assert read_profile(tmp_path / "rates.json") == RATES


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Live runs are simulations too, so that everything is equal."""

    def run(spec: TrialSpec, folder: Path, name: str, tell: object) -> Kept:
        return Kept(simulation(spec), ("late",) if name == "medium_live_2" else ())

    monkeypatch.setattr(fidelity, "ran", run)
    turns = iter(range(100))

    def steps(given: object, threads: int) -> dict[str, dict[str, float]]:
        """Replicas measure 0.5 and 1.5 times the rates."""
        share = 0.5 + next(turns) % 2
        return {"rates": {name: share * rate for name, rate in attrs.asdict(RATES).items()}}

    monkeypatch.setattr(fidelity, "measured_steps", steps)


def test_the_command_tells_counts_times_and_what_is_not_valid(
    pretended: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    flags = ["--requests", "16", "--repetitions", "2", "--json", str(file)]
    assert main([*flags, "--loads", "low"]) == 0
    out = capsys.readouterr().out
    assert out.count(": equal") == 2
    figures = json.loads(file.read_text())
    assert figures["is_exact"] is True
    assert figures["rates"] == attrs.asdict(RATES)
    assert [(row["load"], row["metric"], row["runs"]) for row in figures["timed"]] == [
        ("low", "ttft_mean_s", 2),
        ("low", "throughput", 2),
    ]
    assert main([*flags, "--loads", "medium"]) == 1
    assert "not valid: medium: late" in capsys.readouterr().out
    assert [row["runs"] for row in json.loads(file.read_text())["timed"]] == [1, 1]


def test_steps_are_not_measured_again_where_trials_go_on(
    pretended: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--requests", "16", "--repetitions", "1", "--loads", "low", "--out", str(tmp_path)]
    assert main([*flags, "--json", str(tmp_path / "first.json")]) == 0
    monkeypatch.setattr(fidelity, "measured_steps", lambda given, threads: 1 / 0)
    assert main([*flags, "--json", str(tmp_path / "second.json")]) == 0
    assert (tmp_path / "first.json").read_text() == (tmp_path / "second.json").read_text()


def test_what_cannot_be_asked_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--workload", "nothing"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["--arm", "nothing"]) == 2
    assert "there is no arm 'nothing'" in capsys.readouterr().err


def test_the_command_has_help_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "fidelity", "--help"])
    assert ended.value.code == 0
    assert "lmpool bench fidelity tiny --repetitions 2" in capsys.readouterr().out


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_live_replicas_and_the_simulator_count_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two real replicas of a tiny model, with reclaiming and without: routes, hits, computed tokens, preemptions."""
    code = main(["tiny", "--loads", "--requests", "32", "--out", str(tmp_path / "trials"), "--json", "-"])
    figures = json.loads(capsys.readouterr().out)
    assert figures["problems"] == []
    assert [each["differences"] for each in figures["exact"]] == [[], []]
    assert figures["exact"][0]["cached_tokens"] < figures["exact"][1]["cached_tokens"], "the first run reclaims"
    assert code == 0


def test_a_report_without_times_has_no_table() -> None:
    assert report_lines(Fidelity(SETTINGS, None, (), (), ("x: late",))) == [
        "Counts, live against simulated:",
        "not valid: x: late",
    ]
