import gzip
import json
from pathlib import Path

import pytest

from lmpool.bench.trial.evidence import DIGESTS, FILES, EvidenceError, read_evidence, write_evidence
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
    lines = gzip.decompress((tmp_path / "trial" / "requests.jsonl.gz").read_bytes()).splitlines()
    assert [json.loads(line)["request"] for line in lines] == ["1-0", "1-1", "1-2", "1-3"]
