"""Keys and tenants from a file."""

from hmac import compare_digest
from pathlib import Path

import pytest

from lmpool.io.http.key_watch import KeyWatch
from lmpool.io.http.keys import Client, KeyFileError, read_keys


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "keys"
    path.write_text(text)
    return path


def test_lines_are_keys_tenants_and_admins(tmp_path: Path) -> None:
    keys = read_keys(written(tmp_path, "# of the office\n\nsk-1 red  # Ann\n sk-2\tblue admin \n"))
    assert keys.client_of("sk-1") == Client("red", is_admin=False)
    assert keys.client_of("sk-2") == Client("blue", is_admin=True)
    for stranger in ("", "sk-", "sk-11", "SK-1", "sk-1 ", "\udcff", "é"):
        assert keys.client_of(stranger) is None


def test_a_line_may_bound_what_its_key_has_under_way(tmp_path: Path) -> None:
    keys = read_keys(written(tmp_path, "sk-1 red limit=3\nsk-2 red admin limit=12\nsk-3 red"))
    clients = [keys.client_of(f"sk-{number}") for number in (1, 2, 3)]
    assert clients == [Client("red", False, 3), Client("red", True, 12), Client("red", False, None)]
    names = {client.name for client in clients if client is not None}
    assert len(names) == 3
    assert not any("sk" in name for name in names)


def test_a_file_that_changes_is_read_again_and_a_bad_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = KeyWatch(written(tmp_path, "sk-1 red\n"))
    keys = watch.keys
    written(tmp_path, "sk-1 red\nsk-secret blue\n")
    watch.look()
    assert keys.client_of("sk-secret") == Client("blue", is_admin=False)
    written(tmp_path, "sk-secret blue boss\n")
    watch.look()
    assert keys.client_of("sk-1") == Client("red", is_admin=False)
    (tmp_path / "keys").unlink()
    watch.look()
    watch.look()
    assert keys.client_of("sk-1") == Client("red", is_admin=False)
    written(tmp_path, "sk-secret blue\n")
    watch.look()
    assert keys.client_of("sk-1") is None
    assert [record.levelname for record in caplog.records if record.levelname == "WARNING"] == ["WARNING"] * 2
    assert "secret" not in caplog.text


@pytest.mark.parametrize("count", [1, 40])
def test_every_key_is_compared_whatever_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """In constant time each, and never fewer of them for a key that stands early in the file."""
    compared: list[bytes] = []

    def counting(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return compare_digest(one, other)

    keys = read_keys(written(tmp_path, "".join(f"sk-{number} red\n" for number in range(count))))
    monkeypatch.setattr("lmpool.io.http.keys.compare_digest", counting)
    for presented in ("sk-0", "nobody"):
        compared.clear()
        keys.client_of(presented)
        assert len(compared) == count


@pytest.mark.parametrize(
    "line",
    [
        "sk-secret red limit=0",
        "sk-secret red limit=-1",
        "sk-secret red adminlimit=1",
        "sk-secret",
        "sk-secret red boss",
        "sk-secret red admin more",
    ],
)
def test_a_wrong_line_is_named_by_number_and_never_shown(tmp_path: Path, line: str) -> None:
    with pytest.raises(KeyFileError, match="line 2") as caught:
        read_keys(written(tmp_path, f"sk-1 red\n{line}\n"))
    assert "secret" not in str(caught.value)


def test_a_key_stands_once(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="line 2"):
        read_keys(written(tmp_path, "sk-1 red\nsk-1 blue\n"))


def test_a_file_without_keys_or_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="no keys"):
        read_keys(written(tmp_path, "# nothing\n"))
    with pytest.raises(KeyFileError, match="cannot read"):
        read_keys(tmp_path / "absent")
