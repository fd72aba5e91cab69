"""What one setting may be: how its text is read, what is allowed, and what the operator is told about it."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

SIZE_UNITS = {
    "": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}


class NotAllowedError(ValueError):
    """A value is not of its kind; `Kind.allowed` says what is."""


class Kind(Protocol):
    """One kind of value. Both readers raise NotAllowedError."""

    @property
    def allowed(self) -> str: ...

    @property
    def metavar(self) -> str:
        """In place of the value in a usage line."""
        ...

    def from_text(self, text: str) -> Any:
        """As flags and the environment have it."""
        ...

    def from_value(self, value: object) -> Any:
        """As TOML and programs have it: typed, and never coerced."""
        ...


@attrs.frozen
class Count:
    least: int
    most: int

    @property
    def allowed(self) -> str:
        return f"a whole number from {self.least} to {self.most}"

    @property
    def metavar(self) -> str:
        return "N"

    def from_text(self, text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", text):
            raise NotAllowedError
        return self.from_value(int(text))

    def from_value(self, value: object) -> int:
        if type(value) is not int or not self.least <= value <= self.most:
            raise NotAllowedError
        return value


@attrs.frozen
class PowerOfTwo:
    least: int
    most: int

    @property
    def allowed(self) -> str:
        return f"a power of two from {self.least} to {self.most}"

    @property
    def metavar(self) -> str:
        return "N"

    def from_text(self, text: str) -> int:
        return self.from_value(Count(self.least, self.most).from_text(text))

    def from_value(self, value: object) -> int:
        count = Count(self.least, self.most).from_value(value)
        if count & (count - 1):
            raise NotAllowedError
        return count


@attrs.frozen
class Seconds:
    least: float
    most: float

    @property
    def allowed(self) -> str:
        return f"seconds from {self.least:g} to {self.most:g}"

    @property
    def metavar(self) -> str:
        return "SECONDS"

    def from_text(self, text: str) -> float:
        if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
            raise NotAllowedError
        return self.from_value(float(text))

    def from_value(self, value: object) -> float:
        if type(value) not in (int, float):
            raise NotAllowedError
        seconds = float(value)  # type: ignore[arg-type]
        if not math.isfinite(seconds) or not self.least <= seconds <= self.most:
            raise NotAllowedError
        return seconds


@attrs.frozen
class Size:
    """Bytes."""

    least: int

    @property
    def allowed(self) -> str:
        return f"a size such as 512MiB or 4GiB, at least {size_text(self.least)}"

    @property
    def metavar(self) -> str:
        return "SIZE"

    def from_text(self, text: str) -> int:
        match = re.fullmatch(r"([0-9]{1,15})(\.[0-9]{1,6})? ?([A-Za-z]*)", text)
        if match is None or match[3] not in SIZE_UNITS:
            raise NotAllowedError
        return self.from_value(int(float(match[1] + (match[2] or "")) * SIZE_UNITS[match[3]]))

    def from_value(self, value: object) -> int:
        if isinstance(value, str):
            return self.from_text(value)
        if type(value) is not int or value < self.least:
            raise NotAllowedError
        return value


def size_text(size: int) -> str:
    """Short and exact enough to read: `512MiB`, `1.50GiB`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= SIZE_UNITS[unit]:
            count = size / SIZE_UNITS[unit]
            return f"{count:.0f}{unit}" if count == int(count) else f"{count:.2f}{unit}"
    return f"{size}B"


@attrs.frozen
class Word:
    """One of `words`, or whatever `pattern` matches besides."""

    words: Sequence[str]
    pattern: str
    pattern_text: str

    @property
    def allowed(self) -> str:
        return "one of " + ", ".join([*self.words, *([self.pattern_text] if self.pattern_text else [])])

    @property
    def metavar(self) -> str:
        return "NAME"

    def from_text(self, text: str) -> str:
        return self.from_value(text)

    def from_value(self, value: object) -> str:
        if not isinstance(value, str) or not (value in self.words or re.fullmatch(self.pattern, value)):
            raise NotAllowedError
        return value


def one_of(*words: str) -> Word:
    return Word(words, r"(?!)", "")


@attrs.frozen
class Text:
    allowed: str
    characters_max: int

    @property
    def metavar(self) -> str:
        return "NAME"

    def from_text(self, text: str) -> str:
        return self.from_value(text)

    def from_value(self, value: object) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= self.characters_max or not value.isprintable():
            raise NotAllowedError
        return value


@attrs.frozen
class Texts:
    """Several, in their order; in the environment separated by commas."""

    item: Text

    @property
    def allowed(self) -> str:
        return f"one or more different ones: {self.item.allowed}"

    @property
    def metavar(self) -> str:
        return "NAME"

    def from_text(self, text: str) -> tuple[str, ...]:
        return self.from_value([part.strip() for part in text.split(",")])

    def from_value(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or len(set(value)) != len(value):
            raise NotAllowedError
        return tuple(self.item.from_value(item) for item in value)


@attrs.frozen
class Pathname:
    allowed: str

    @property
    def metavar(self) -> str:
        return "PATH"

    def from_text(self, text: str) -> Path:
        if not text or "\0" in text:
            raise NotAllowedError
        return Path(text).expanduser()

    def from_value(self, value: object) -> Path:
        if isinstance(value, Path):
            return value.expanduser()
        if not isinstance(value, str):
            raise NotAllowedError
        return self.from_text(value)


@attrs.frozen
class Knob:
    """One setting. Its flag, variable and TOML key all come from its name."""

    section: str
    name: str
    kind: Kind
    default: Any
    about: str
    reason: str
    """Why this default and these bounds; the rule where the default depends on the machine."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "LMPOOL_" + self.name.upper()
