"""What the operator reads on standard error while a server starts and runs: lines when something changes."""

import json
from collections.abc import Callable

import attrs

from lmpool.io.supervision.fault import Fault

PROGRESS_PAUSE_S = 1.0
"""Between two progress lines of one process."""

WAITING_PAUSE_S = 2.0
"""Before a line that says what is waited for."""


def quote_plain(name: str, line: str) -> str:
    return f"{name} | {line}"


def quote_json(name: str, line: str) -> str:
    """A JSON object, which says itself whose it is, as it stands; any other line as the event of one."""
    return line if line.startswith("{") else json.dumps({"event": line, "level": "info", "process": name})


QUOTES = {"lines": quote_plain, "json": quote_json}
"""By the name of the log format in the settings."""


@attrs.frozen
class _Doing:
    text: str
    since_s: float


class Journal:
    """Tells what happens to whom, and remembers the first fault since all was well."""

    def __init__(
        self, say: Callable[[str], None], quote: Callable[[str, str], str], clock_s: Callable[[], float]
    ) -> None:
        """`quote` makes a line of a process's name and a line that it wrote to its standard error."""
        self._say = say
        self._quote = quote
        self._clock_s = clock_s
        self._last_said_s = float("-inf")
        self.first_fault: Fault | None = None
        self._doings: dict[str, _Doing] = {}
        """Of each process that is not ready."""
        self._said_s: dict[str, float] = {}
        self._facts: dict[str, tuple[str, ...]] = {}

    def say(self, line: str) -> None:
        self._last_said_s = self._clock_s()
        self._say(line)

    def written(self, name: str, line: str) -> None:
        """By the process itself, to its standard error."""
        self.say(self._quote(name, line))

    def progress(self, name: str, text: str) -> None:
        last = self._doings.get(name)
        if last is not None and last.text == text:
            return
        self._doings[name] = _Doing(text, self._clock_s())
        if self._clock_s() - self._said_s.get(name, float("-inf")) >= PROGRESS_PAUSE_S:
            self._said_s[name] = self._clock_s()
            self.say(f"{name}: {text}")

    def started(self, name: str) -> None:
        self._doings[name] = _Doing("starting", self._clock_s())

    def ended(self, name: str) -> None:
        """It is not waited for any more."""
        self._doings.pop(name, None)

    def ready(self, name: str, facts: tuple[str, ...]) -> None:
        """Facts that another process of the same kind has told are not told again."""
        self.ended(name)
        kind = name.partition(" ")[0]
        self.say(f"{name}: ready")
        if self._facts.get(kind) != facts:
            self._facts[kind] = facts
            for fact in facts:
                self.say(f"  {fact}")

    def fault(self, fault: Fault) -> None:
        self.ended(fault.process)
        self.first_fault = self.first_fault or fault

    def all_well(self) -> None:
        self.first_fault = None

    def say_waiting(self) -> None:
        """For those who wonder whether anything moves, when nothing else has told them for a while."""
        now_s = self._clock_s()
        if self._doings and now_s - self._last_said_s >= WAITING_PAUSE_S:
            told = [f"{name} ({doing.text}, {now_s - doing.since_s:.0f} s)" for name, doing in self._doings.items()]
            self.say("waiting for " + ", ".join(told))

    def end(self, last: Fault, verdict: str) -> list[str]:
        """The last lines of a server that failed: the first cause, and where it differs, also the last."""
        first = self.first_fault or last
        head, *more = first.report()
        lines = [f"lmpool: {verdict}: {head}", *more]
        if (last.process, last.cause) != (first.process, first.cause):
            lines.append(f"in the end {last.process}: {last.what()}")
        return lines
