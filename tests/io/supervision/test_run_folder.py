import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lmpool.io.supervision.run_folder import RunFolder, RunFolderError


def test_the_folder_is_private_and_gone_at_the_end(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs", "ab12")
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.path.parent.stat().st_mode) == 0o700
    (folder.path / "control.sock").touch()
    folder.close()
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_living_run_is_left_alone_and_a_dead_one_removed(tmp_path: Path) -> None:
    living = RunFolder(tmp_path, "aa")
    dead = tmp_path / "run-bb"
    dead.mkdir()
    (dead / "lock").touch()
    (dead / "worker-0.sock").touch()
    unfinished = tmp_path / "run-cc"
    unfinished.mkdir()
    other = tmp_path / "run-notes"
    other.mkdir()
    mine = RunFolder(tmp_path, "dd")
    assert {entry.name for entry in tmp_path.iterdir()} == {"run-aa", "run-dd", "run-notes"}
    mine.close()
    living.close()


def test_the_folder_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from lmpool.io.supervision.run_folder import RunFolder;"
        "RunFolder(Path(sys.argv[1]), 'ee'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert (tmp_path / "run-ee").exists()
    RunFolder(tmp_path, "ff").close()
    assert not (tmp_path / "run-ee").exists()


def test_a_path_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="--run-folder"):
        RunFolder(tmp_path / ("x" * 100), "aa")


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    with pytest.raises(RunFolderError, match="others may write"):
        RunFolder(open_folder, "aa")


def test_a_file_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(RunFolderError, match="cannot make a folder for sockets"):
        RunFolder(tmp_path / "runs", "aa")
