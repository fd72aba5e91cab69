"""How commands ask a running server: one document over HTTP, with a key of the operator's."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

TIMEOUT_S = 10.0


class ClientError(Exception):
    """One line for the operator."""


def operator_key(path: Path) -> str:
    """Of a server's own key file: the first that is an admin's, else the first. Raises ClientError."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError(f"cannot read the key file {path}: {error}") from error
    keys = [words for line in lines if (words := line.partition("#")[0].split())]
    if not keys:
        raise ClientError(f"{path} has no keys")
    admins = [words for words in keys if words[2:] == ["admin"]]
    return (admins or keys)[0][0]


def fetch_document(url: str, path: str, key: str | None) -> Mapping[str, Any]:
    """Raises ClientError."""
    if not url.startswith(("http://", "https://")):
        raise ClientError(f"{url!r} is no address of a server; it looks like http://127.0.0.1:8000")
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url.rstrip("/") + path, headers=headers)  # noqa: S310 (checked above)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            document: Mapping[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            advice = "; --api-key-file FILE has them for this command" if error.code == HTTPStatus.UNAUTHORIZED else ""
            raise ClientError(f"{url} answers {error.code}: {_told(error.read())}{advice}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ClientError(f"no server answers at {url} ({reason}); name another with --url") from error
    return document


def _told(body: bytes) -> str:
    """The message of an answer in the shape of all our errors, or what there is instead."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace").strip() or "no reason given"
