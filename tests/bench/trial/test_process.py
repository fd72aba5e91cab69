from pathlib import Path

import attrs

from lmpool.bench.trial.evidence import read_evidence
from lmpool.bench.trial.process import perform_trial
from lmpool.bench.trial.spec import Venue
from tests.bench.trial.made import SPEC


def test_a_process_of_its_own_leaves_the_evidence_and_its_words(tmp_path: Path) -> None:
    spec = attrs.evolve(SPEC, venue=Venue.SIMULATOR)
    assert perform_trial(spec, tmp_path / "trial", tmp_path / "log") == 0
    assert read_evidence(tmp_path / "trial").spec == spec
    assert '"ended": 12' in (tmp_path / "log").read_text()
    assert perform_trial(spec, tmp_path / "trial", tmp_path / "log") == 2
    assert "there already" in (tmp_path / "log").read_text()
