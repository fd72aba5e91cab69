"""Keys and the tenants they stand for. A key file has lines `KEY TENANT [admin] [limit=N]`; `#` begins a comment."""

import re
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path

import attrs


@attrs.frozen
class Client:
    """Who asks: a tenant's prefixes are shared with nobody else."""

    tenant: str
    is_admin: bool
    limit: int | None = None
    """Generation requests that may be under way at a time with this key; None: as many as the server takes."""
    name: str = attrs.field(default="", eq=False)
    """Tells keys apart and is none: of their digest."""


ANYBODY = Client(tenant="default", is_admin=False)
"""Everyone on a server without a key file: one tenant that may not administer."""


class KeyFileError(Exception):
    """One line for the operator; never a part of a key."""


class Keys:
    __slots__ = ("_clients",)

    def __init__(self, clients: dict[bytes, Client]) -> None:
        self._clients = clients

    def replace(self, other: "Keys") -> None:
        """From now on the other's keys hold. What is under way goes on."""
        self._clients = other._clients

    def client_of(self, presented: str) -> Client | None:
        """Compares with every key, so that the time taken tells nothing about any of them."""
        given = presented.encode("utf-8", "surrogateescape")
        found: Client | None = None
        for key, client in self._clients.items():
            if compare_digest(key, given):
                found = client
        return found


def read_keys(path: Path) -> Keys:
    """Raises KeyFileError."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"cannot read the key file {path}: {error}") from error
    clients: dict[bytes, Client] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        marks = re.fullmatch(r"(?:(admin)(?: |$))?(?:limit=([1-9][0-9]{0,5}))?", " ".join(words[2:]))
        if len(words) < 2 or marks is None:
            raise KeyFileError(f"{path}, line {number}: expected KEY TENANT [admin] [limit=N]")
        key = words[0].encode()
        if key in clients:
            raise KeyFileError(f"{path}, line {number}: this key stands on an earlier line as well")
        clients[key] = Client(
            tenant=words[1],
            is_admin=marks[1] is not None,
            limit=None if marks[2] is None else int(marks[2]),
            name=blake2b(key, digest_size=4).hexdigest(),
        )
    if not clients:
        raise KeyFileError(f"{path} has no keys; a server without keys is started without --api-key-file")
    return Keys(clients)
