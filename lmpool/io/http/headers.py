"""Headers that say what no field of OpenAI's API says, and the ones that every answer has. Listed in `specs/api.md`."""

from secrets import token_hex

import attrs
from starlette.datastructures import Headers

from lmpool.core.limits import LABEL_BYTES_MAX, PRIORITY_MAX, PRIORITY_MIN
from lmpool.io.http.errors import ApiError, Code

LABEL = "x-request-id"
"""In: the client's name for its request, for logs alone. Out: the same, or one that the server drew."""
SESSION = "x-session-id"
"""In: requests of one conversation, for policies that keep sessions together."""
PRIORITY = "x-priority"
"""In: lower is served first."""
DEADLINE = "x-deadline-ms"
"""In: milliseconds from arrival; a request that is not complete by then ends with 408."""
REQUEST = "x-lmpool-request"
"""Out: the server's own ids of the request's prompts, as /pool/decisions knows them, with commas between."""

DEADLINE_MS_MAX = 86_400_000


@attrs.frozen
class Wishes:
    """What the headers of a generation request ask for."""

    session: str
    priority: int
    deadline_ms: int | None


def draw_label() -> str:
    return f"req-{token_hex(12)}"


def read_label(headers: Headers) -> str:
    """Empty where the client gave none. Raises ApiError for one that is too long or not printable ASCII."""
    return _read_word(headers, LABEL)


def read_wishes(headers: Headers) -> Wishes:
    """Raises ApiError."""
    return Wishes(
        session=_read_word(headers, SESSION),
        priority=_read_integer(headers, PRIORITY, PRIORITY_MIN, PRIORITY_MAX) or 0,
        deadline_ms=_read_integer(headers, DEADLINE, 1, DEADLINE_MS_MAX),
    )


def _read_word(headers: Headers, name: str) -> str:
    """Empty where absent."""
    word = headers.get(name, "")
    if len(word) > LABEL_BYTES_MAX:
        raise ApiError(Code.INVALID_VALUE, f"{name} must have at most {LABEL_BYTES_MAX} bytes.", name)
    if not (word.isascii() and word.isprintable()):
        raise ApiError(Code.INVALID_VALUE, f"{name} must be printable ASCII.", name)
    return word


def _read_integer(headers: Headers, name: str, least: int, most: int) -> int | None:
    word = headers.get(name)
    if word is None:
        return None
    digits = word.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 10 or not least <= int(word) <= most:
        raise ApiError(Code.INVALID_VALUE, f"{name} must be an integer from {least} to {most}.", name)
    return int(word)
