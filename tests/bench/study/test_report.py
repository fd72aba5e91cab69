import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import attrs
import jsonschema_rs
import pytest
from typing_extensions import override

from lmpool.bench.load.schema import json_schema
from lmpool.bench.study.figures import drawn, pictures
from lmpool.bench.study.folder import LEDGER, STUDY, Folder, StudyError, begin_folder, open_folder
from lmpool.bench.study.matrix import matrix
from lmpool.bench.study.pack import ROOT, opened, pack
from lmpool.bench.study.page import html_page
from lmpool.bench.study.report import ReportError, StudyReport, read_report, report_text, study_report
from lmpool.bench.study.runner import run_study
from lmpool.bench.study.summary import summary_lines
from lmpool.bench.trial.evidence import MACHINE, write_evidence
from lmpool.bench.trial.spec import TrialSpec, Venue
from tests.bench.study.made import PLAN, Bench, evidence

METRICS = '"computed_tokens", "reuse", "request_hit", "ttft_mean_s"'
SWEPT = PLAN + "\n[sweep]\n"
BRIEF = SWEPT.replace(METRICS, '"reuse"')
"""Where figures are drawn, which takes long."""


def _study(path: Path, bench: Bench | None = None, text: str = SWEPT, venue: Venue = Venue.SIMULATOR) -> Folder:
    begun = begin_folder(path, text.encode(), "plan.toml", venue)
    return run_study(begun, (bench or Bench()).perform, lambda _: None)[0]


def _all(folder: Folder) -> tuple[str, str, list[bytes]]:
    report = study_report(folder)
    images = [drawn(one, form) for one in pictures(report, folder.plan) for form in ("svg", "png")]
    return report_text(report), html_page(report, folder.plan), images


def test_a_report_is_the_same_to_the_byte_from_a_copy_of_the_raw_files_alone(tmp_path: Path) -> None:
    folder = _study(tmp_path / "study", text=BRIEF)
    first = _all(folder)
    shutil.copytree(folder.path, tmp_path / "elsewhere" / "copy")
    shutil.rmtree(folder.path)
    assert _all(open_folder(tmp_path / "elsewhere" / "copy")) == first
    assert str(tmp_path) not in first[0] + first[1]


def test_a_packed_study_has_the_same_bytes_each_time_and_the_same_report(tmp_path: Path) -> None:
    folder = _study(tmp_path / "study", text=BRIEF)
    files = [tmp_path / "one.tar.xz", tmp_path / "two.tar.xz"]
    sizes = [pack(folder, file) for file in files]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert sizes[0] == files[0].stat().st_size
    with opened(files[0]) as unpacked:
        assert unpacked.path.name == ROOT
        assert _all(unpacked) == _all(folder)


def test_a_packed_study_that_is_too_large_is_refused(tmp_path: Path) -> None:
    folder = _study(tmp_path / "study")
    with pytest.raises(StudyError, match="more than 1,000"):
        pack(folder, tmp_path / "one.tar.xz", 1_000)
    assert not (tmp_path / "one.tar.xz").exists()


def test_what_is_no_packed_study_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(StudyError, match="is no packed study"), opened(tmp_path / "text"):
        pass


def test_figures_of_arms_are_means_and_ratios_over_complete_repetitions(tmp_path: Path) -> None:
    report = study_report(_study(tmp_path / "study"))
    assert [(point.budget, point.complete) for point in report.points] == [(100.0, 3), (200.0, 3)]
    baseline, default = report.points[0].arms
    found = {one.metric: one for one in default.metrics}
    assert found["computed_tokens"].value.mean == 4 * 64 - 3 * 32
    assert found["computed_tokens"].ratio is not None
    assert found["computed_tokens"].ratio.mean == pytest.approx((256 - 96) / (256 - 48))
    assert all(one.ratio is None for one in baseline.metrics)
    ttft = found["ttft_mean_s"]
    assert ttft.ratio is not None
    assert ttft.ratio.high == pytest.approx(ttft.ratio.mean), "repetitions differ, and their ratios do not"
    assert ttft.value.high is not None
    assert ttft.value.high > ttft.value.mean * 1.5
    assert report.points[0].token_sharing == 0.6
    assert default.decisions.passed_over == 9


def test_verdicts_and_knees_follow_from_the_plan(tmp_path: Path) -> None:
    report = study_report(_study(tmp_path / "study"))
    assert (report.success, report.go) == ("met", None)
    assert [knee.budget for knee in report.knees] == [100.0, 100.0]
    assert report.departures == ()
    strict = study_report(_study(tmp_path / "strict", text=SWEPT.replace("at_most = 0.8", "at_most = 0.7")))
    assert strict.success == "not met"


def test_a_trial_that_is_missing_leaves_its_repetition_out_and_the_verdict_open(tmp_path: Path) -> None:
    folder = _study(tmp_path / "study")
    shutil.rmtree(folder.trial(matrix(folder.plan)[0]))
    report = study_report(folder)
    assert report.success == "undecided"
    assert sorted(point.complete for point in report.points) == [2, 3]
    assert report.departures == ("1 of 12 trials have not run",)


def test_what_failed_is_not_called_missing_and_what_is_of_no_trial_is_told(tmp_path: Path) -> None:
    folder = _study(tmp_path / "study")
    first, second, third = (folder.trial(trial) for trial in matrix(folder.plan)[:3])
    first.rename(first.with_name(f"{first.name}.failed-1"))
    shutil.rmtree(second)
    third.with_name(f"{third.name}.log.txt").write_text("of a trial that runs")
    third.with_name("junk").write_text("")
    third.with_name(f"{third.name}.copy").mkdir()
    said = study_report(folder).departures
    assert said[:2] == ("1 of 12 trials have not run", "1 of 12 trials have failed")
    assert said[-1] == f"among the trials lies what is of none: {third.name}.copy, junk"


def test_many_arms_stand_below_each_other_in_lines_that_terminals_show(tmp_path: Path) -> None:
    arms = ["round-robin", "default", "random", "session", "least-loaded", "dynamo"]
    folder = _study(tmp_path / "study", text=SWEPT.replace('["round-robin", "default"]', str(arms).replace("'", '"')))
    lines = summary_lines(study_report(folder), folder.plan)
    begin = next(number for number, line in enumerate(lines) if line.startswith("agent-sessions, KV budget"))
    assert lines[begin + 1].split() == ["arm", "mean", "ratio"]
    table = lines[begin + 2 : begin + 2 + len(arms)]
    assert [next(arm for arm in arms if f" {arm} " in line) for line in table] == arms
    assert max(map(len, table)) <= 120


def test_evidence_that_was_changed_is_told_and_counts_nothing(tmp_path: Path) -> None:
    folder = _study(tmp_path / "study")
    trial = matrix(folder.plan)[0]
    (folder.trial(trial) / MACHINE).write_text("{}")
    report = study_report(folder)
    (said,) = report.departures
    assert said.startswith(f"{trial.name}: trials/{trial.name}/{MACHINE} is not as it was written")
    assert report.success == "undecided"


def test_evidence_that_was_changed_with_its_digests_is_told_by_the_ledger(tmp_path: Path) -> None:
    folder = _study(tmp_path / "study")
    one, other = (trial for trial in matrix(folder.plan) if trial.repetition == 1 and trial.point.budget == 100)
    shutil.rmtree(folder.trial(one))
    shutil.copytree(folder.trial(other), folder.trial(one))
    report = study_report(folder)
    assert report.departures == (
        f"{one.name}: its evidence has changed since it ended",
        f"{one.name}: its spec is not that of the plan",
    )
    assert report.success == "undecided"


def test_arms_with_unequal_workloads_or_blocks_are_told(tmp_path: Path) -> None:
    """As if the generator, or a trace, had changed while a study was interrupted."""
    text = SWEPT.replace("blocks = [100, 200]", "shares = [0.5]")

    class Changing(Bench):
        @override
        def perform(self, spec: TrialSpec, folder: Path, log: Path) -> int:
            if len(self.performed) == 1:
                self.performed.append(spec)
                log.touch()
                made = evidence(spec)
                made = attrs.evolve(made, workload=attrs.evolve(made.workload, fingerprint="another"))
                write_evidence(folder, made)
                return 0
            return super().perform(spec, folder, log)

    folder = _study(tmp_path / "study", Changing(), text)
    point = matrix(folder.plan)[0].point.name
    assert study_report(folder).departures == (f"{point}: the arms of repetition 1 had different workloads",)


def test_a_report_asks_for_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _study(tmp_path / "study", text=SWEPT.replace("blocks = [100, 200]", "shares = [0.5]"))

    def fails(spec: TrialSpec, block_size: int) -> int:
        raise AssertionError((spec, block_size))

    monkeypatch.setattr("lmpool.bench.study.matrix.blocks_at_end", fails)
    monkeypatch.setattr("lmpool.bench.study.matrix.trial_trace", fails)
    assert study_report(folder).departures == ()


def test_a_plan_that_was_changed_is_no_study_any_more(tmp_path: Path) -> None:
    folder = _study(tmp_path / "study")
    frozen = json.loads((folder.path / STUDY).read_text())
    (folder.path / STUDY).write_text(json.dumps({**frozen, "plan_sha256": "0" * 64}))
    with pytest.raises(StudyError, match="not the plan that the study began with"):
        open_folder(folder.path)


def test_failures_and_another_venue_are_departures(tmp_path: Path) -> None:
    text = SWEPT.replace("[100, 200]", "[100]").replace('venue = "simulator"', 'venue = "live"')
    report = study_report(_study(tmp_path / "study", Bench({("default", 2): 1}), text))
    venue, failed = report.departures
    assert venue == "the plan is for the venue live, and it ran in the venue simulator"
    assert failed.endswith("default_r2: failed once (a replica was lost)")
    assert next(one for one in report.trials if one.name in failed).attempts == 2
    assert report.success == "met"


def test_b76_a_trial_that_is_not_valid_is_in_no_figure_and_its_kind_of_error_is_told(tmp_path: Path) -> None:
    text = SWEPT.replace("[100, 200]", "[100]")
    report = study_report(_study(tmp_path / "study", Bench({("default", 2): 9}), text))
    assert [arm.valid for arm in report.points[0].arms] == [3, 2]
    assert report.points[0].complete == 2
    assert report.success == "undecided"
    assert any("default_r2: failed 2 times (a replica was lost)" in said for said in report.departures)


def test_a_study_that_has_only_begun_is_reported_as_such(tmp_path: Path) -> None:
    asked = '\n[crossover]\narms = ["default"]\nagainst = "round-robin"\nmetric = "ttft_mean_s"\n'
    text = SWEPT.replace("[100, 200]", "[100]") + asked
    folder = begin_folder(tmp_path / "study", text.encode(), "plan.toml", Venue.SIMULATOR)
    report = study_report(folder)
    assert (report.success, report.departures) == ("undecided", ("6 of 6 trials have not run",))
    assert [one.search.value for one in report.crossover] == ["not yet searched to its end"]
    assert [one.budget for one in report.knees] == [None, None]
    assert list(pictures(report, folder.plan)) == []
    assert "6 of 6 trials have not run" in html_page(report, folder.plan)
    assert summary_lines(report, folder.plan)[-1].startswith("crossover of agent-sessions, default: not yet")


def test_a_ledger_with_trials_of_another_plan_is_told(tmp_path: Path) -> None:
    folder = _study(tmp_path / "study")
    line = json.loads((folder.path / LEDGER).read_text().splitlines()[0])
    with (folder.path / LEDGER).open("a") as file:
        file.write(json.dumps({**line, "trial": "knitting"}) + "\n")
    report = study_report(open_folder(folder.path))
    assert report.departures == ("the ledger has trials that the plan does not: knitting",)


def test_the_record_keeps_its_schema_and_is_read_strictly(tmp_path: Path) -> None:
    report = study_report(_study(tmp_path / "study"))
    text = report_text(report)
    jsonschema_rs.validate(json_schema(StudyReport), json.loads(text))
    assert read_report(text) == report
    with pytest.raises(ReportError, match="no report of a study"):
        read_report(text.replace('"venue"', '"place"'))
    with pytest.raises(ReportError, match="schema 2"):
        read_report(text.replace('"schema_version": 1', '"schema_version": 2'))
    with pytest.raises(ReportError, match="no JSON"):
        read_report("hello")


class Tags(HTMLParser):
    """Whether every tag is closed in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)

    @override
    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else_and_begins_with_verdicts(tmp_path: Path) -> None:
    text = BRIEF.replace("Does it reuse more?", "Is 2 < 3 <script>?")
    folder = _study(tmp_path / "study", text=text)
    page = html_page(study_report(folder), folder.plan)
    assert "<script" not in page
    assert "src=" not in page
    assert "Is 2 &lt; 3 &lt;script&gt;?" in page
    assert page.count("<svg") == page.count("<figure>") == 2
    order = [page.index(f"<h2>{title}</h2>") for title in ("Verdicts", "Departures from the plan", "Figures", "Trials")]
    assert order == sorted(order)
    assert folder.frozen.plan_sha256 in page
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    ids = [part.split('"')[0] for part in page.split(' id="')[1:]]
    assert len(ids) == len(set(ids))


def test_b71_a_study_of_cold_caches_says_which_trials_were_warm(tmp_path: Path) -> None:
    """By hand the default reuses 37.5 % of the tokens, and round robin half of that, where the trace shares a fifth."""
    text = SWEPT.replace("[100, 200]", "[100]")
    folder = begin_folder(tmp_path / "study", text.encode(), "plan.toml", Venue.SIMULATOR)
    folder, bad = run_study(folder, Bench(sharing=0.2).perform, lambda _: None)
    assert sorted(name.rsplit("_", 2)[1] for name in bad) == ["default"] * 3
    report = study_report(folder)
    assert len(report.departures) >= 3
    assert all(
        "37.5% of the prompt tokens were cached" in said and "not cold" in said for said in report.departures[1:]
    )
    assert report.success == "undecided"
