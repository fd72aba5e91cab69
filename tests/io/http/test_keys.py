"""Keys and tenants from a file."""

from pathlib import Path

import pytest

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


@pytest.mark.parametrize("line", ["sk-secret", "sk-secret red boss", "sk-secret red admin more"])
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
