import subprocess
from pathlib import Path

from lmpool.bench.trial.machine import git_state, machine_facts


def _git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.com")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_state_of_a_checkout_is_its_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    _git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None
    (tmp_path / "file").write_text("one")
    _git(tmp_path, "add", "file")
    _git(tmp_path, "commit", "-q", "-m", "first")
    state = git_state(tmp_path)
    assert state is not None
    assert (state.commit, state.is_changed) == (_git(tmp_path, "rev-parse", "HEAD"), False)
    (tmp_path / "file").write_text("two")
    changed = git_state(tmp_path)
    assert changed is not None
    assert changed.is_changed


def test_facts_have_versions_and_cores() -> None:
    facts = machine_facts()
    assert facts.packages["attrs"]
    assert facts.cores >= 1
    assert facts.python.count(".") == 2
