import json
from pathlib import Path
from threading import Event, Thread

import pytest

from lmpool.gpu.model_cache import FACTS, Origin, entry_path, is_complete, provide, remembered_sha256

ORIGIN = Origin(name="tiny.Q4_1", source="tiny", source_sha256="ab" * 32, dtype="float32")


def ignore(line: str) -> None:
    """Progress that nobody reads."""


class Maker:
    """Writes one file, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path, scratch: Path) -> None:
        self.calls += 1
        (scratch / "download").write_text("large")
        (folder / "weights").write_text("weights")


def make_never(folder: Path, scratch: Path) -> None:
    raise AssertionError("made again")


def test_makes_once(tmp_path: Path) -> None:
    entry = entry_path(tmp_path, ORIGIN, 1)
    maker = Maker()
    assert provide(entry, ORIGIN, maker, ignore) == entry
    assert provide(entry, ORIGIN, make_never, ignore) == entry
    assert entry.name == "tiny.Q4_1"
    assert sorted(file.name for file in entry.iterdir()) == [FACTS, "weights"]
    assert [child.name for child in entry.parent.iterdir()] == [entry.name]
    facts = json.loads((entry / FACTS).read_text())
    assert facts["source_sha256"] == ORIGIN.source_sha256
    assert facts["files"] == {"weights": 7}


def test_another_maker_version_and_another_name_have_other_entries(tmp_path: Path) -> None:
    other = Origin(name="other", source="tiny", source_sha256="ab" * 32, dtype="float32")
    places = {entry_path(tmp_path, ORIGIN, 1), entry_path(tmp_path, ORIGIN, 2), entry_path(tmp_path, other, 1)}
    assert len({place.parent for place in places}) == 3


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    entry = entry_path(tmp_path, ORIGIN, 1)

    def fail(folder: Path, scratch: Path) -> None:
        (folder / "weights").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        provide(entry, ORIGIN, fail, ignore)
    assert list(entry.parent.iterdir()) == []
    assert not is_complete(entry)


@pytest.mark.parametrize("damage", ["lost", "cut", "facts lost", "facts cut", "killed while it was made"])
def test_what_is_damaged_is_made_anew(tmp_path: Path, damage: str) -> None:
    entry = entry_path(tmp_path, ORIGIN, 1)
    provide(entry, ORIGIN, Maker(), ignore)
    match damage:
        case "lost":
            (entry / "weights").unlink()
        case "cut":
            (entry / "weights").write_text("we")
        case "facts lost":
            (entry / FACTS).unlink()
        case "facts cut":
            (entry / FACTS).write_text("")
        case _:
            entry.rename(entry.parent / "partial")
    maker = Maker()
    provide(entry, ORIGIN, maker, ignore)
    assert maker.calls == 1
    assert is_complete(entry)


def test_two_starts_at_once_make_it_once(tmp_path: Path) -> None:
    entry = entry_path(tmp_path, ORIGIN, 1)
    begun, others_wait = Event(), Event()
    told: list[str] = []

    def make_slowly(folder: Path, scratch: Path) -> None:
        begun.set()
        assert others_wait.wait(60)
        (folder / "weights").write_text("weights")

    def tell(line: str) -> None:
        told.append(line)
        others_wait.set()

    first = Thread(target=provide, args=(entry, ORIGIN, make_slowly, ignore))
    first.start()
    assert begun.wait(60)
    assert provide(entry, ORIGIN, make_never, tell) == entry
    first.join()
    assert told == ["waiting for another start that prepares the same model"]


def test_digests_are_remembered_until_the_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_text("one")
    first = remembered_sha256(file, tmp_path / "cache")
    assert remembered_sha256(file, tmp_path / "cache") == first
    assert len(list((tmp_path / "cache" / "digests").iterdir())) == 1
    file.write_text("three")
    assert remembered_sha256(file, tmp_path / "cache") != first
