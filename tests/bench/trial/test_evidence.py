import json
from pathlib import Path

import attrs
import pytest

from lmpool.bench.trial.evidence import DIGESTS, FILES, EvidenceError, read_evidence, write_evidence
from lmpool.core.ids import Rank
from lmpool.core.messages.ingress_control import Candidate
from tests.bench.trial.made import EVIDENCE


def test_evidence_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "trial"
    write_evidence(folder, EVIDENCE)
    assert read_evidence(folder) == EVIDENCE
    assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, DIGESTS])
    assert [path.name for path in folder.parent.iterdir()] == ["trial"]


def test_equal_evidence_has_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_evidence(tmp_path / name, EVIDENCE)
    for name in (*FILES, DIGESTS):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_a_folder_is_never_written_over_and_a_torn_one_is_in_nobodys_way(tmp_path: Path) -> None:
    torn = tmp_path / ".trial.torn"
    torn.mkdir()
    (torn / "spec.json").write_text("half of")
    with pytest.raises(EvidenceError, match="no folder of a trial"):
        read_evidence(tmp_path / "trial")
    write_evidence(tmp_path / "trial", EVIDENCE)
    with pytest.raises(EvidenceError, match="there already"):
        write_evidence(tmp_path / "trial", EVIDENCE)
    assert read_evidence(tmp_path / "trial") == EVIDENCE


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_changed_or_is_gone_is_told(tmp_path: Path, name: str) -> None:
    write_evidence(tmp_path / "trial", EVIDENCE)
    file = tmp_path / "trial" / name
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(EvidenceError, match=f"{name} is not as it was written"):
        read_evidence(tmp_path / "trial")
    file.unlink()
    with pytest.raises(EvidenceError, match=f"{name} cannot be read"):
        read_evidence(tmp_path / "trial")


def test_the_logs_are_lines_of_json_for_whoever_reads_them(tmp_path: Path) -> None:
    write_evidence(tmp_path / "trial", EVIDENCE)
    lines = (tmp_path / "trial" / "requests.jsonl").read_text().splitlines()
    assert [json.loads(line)["request"] for line in lines] == ["1-0", "1-1", "1-2", "1-3"]


def test_costs_are_kept_to_digits_of_the_greatest_of_their_decision(tmp_path: Path) -> None:
    candidates = (
        Candidate(Rank(0), True, "", 75, 0, 748, (5_682_291.67, 8_724.8), 5_691_016.47),
        Candidate(Rank(1), True, "", 0, 0, 5_548, (17_421_524.14, 253_595_091.77), 271_016_615.91),
    )
    one = attrs.evolve(EVIDENCE.decisions[0], term_names=("wait", "prefill"), candidates=candidates)
    write_evidence(tmp_path / "trial", attrs.evolve(EVIDENCE, decisions=(one,)))
    (kept,) = read_evidence(tmp_path / "trial").decisions
    assert [(each.terms, each.cost) for each in kept.candidates] == [
        ((5_680_000.0, 10_000.0), 5_690_000.0),
        ((17_420_000.0, 253_600_000.0), 271_020_000.0),
    ]
    assert attrs.evolve(kept, candidates=candidates) == one
