"""What the operator reads on standard error while a server starts and runs: lines when something changes."""

from collections.abc import Callable

from lmpool.io.fault import Fault

PROGRESS_PAUSE_S = 1.0
"""Between two progress lines of one process."""

WAITING_PAUSE_S = 2.0
"""Before a line that says what is waited for."""


class Journal:
    """Puts a name before every line, and remembers the first fault since all was well."""

    def __init__(self, say: Callable[[str], None], clock_s: Callable[[], float]) -> None:
        self._say = say
        self._clock_s = clock_s
        self._last_said_s = float("-inf")
        self.first_fault: Fault | None = None
        self.doings: dict[str, str] = {}
        """What each process that is not ready was last doing."""
        self._said_s: dict[str, float] = {}
        self._facts: dict[str, tuple[str, ...]] = {}

    def say(self, line: str) -> None:
        self._last_said_s = self._clock_s()
        self._say(line)

    def written(self, name: str, line: str) -> None:
        """By the process itself, to its standard error."""
        self.say(f"{name} | {line}")

    def progress(self, name: str, text: str) -> None:
        changed = self.doings.get(name) != text
        self.doings[name] = text
        if changed and self._clock_s() - self._said_s.get(name, float("-inf")) >= PROGRESS_PAUSE_S:
            self._said_s[name] = self._clock_s()
            self.say(f"{name}: {text}")

    def started(self, name: str) -> None:
        self.doings[name] = "starting"

    def ready(self, name: str, facts: tuple[str, ...]) -> None:
        """Facts that another process of the same kind has told are not told again."""
        self.doings.pop(name, None)
        kind = name.partition(" ")[0]
        self.say(f"{name}: ready")
        if self._facts.get(kind) != facts:
            self._facts[kind] = facts
            for fact in facts:
                self.say(f"  {fact}")

    def fault(self, fault: Fault) -> None:
        self.doings.pop(fault.process, None)
        self.first_fault = self.first_fault or fault

    def all_well(self) -> None:
        self.first_fault = None

    def say_waiting(self) -> None:
        """For those who wonder whether anything moves, when nothing else has told them for a while."""
        if self.doings and self._clock_s() - self._last_said_s >= WAITING_PAUSE_S:
            self.say("waiting for " + ", ".join(f"{name} ({doing})" for name, doing in self.doings.items()))

    def end(self, last: Fault, verdict: str) -> list[str]:
        """The last lines of a server that failed: the first cause, and where it differs, also the last."""
        first = self.first_fault or last
        head, *more = first.report()
        lines = [f"lmpool: {verdict}: {head}", *more]
        if (last.process, last.cause) != (first.process, first.cause):
            lines.append(f"in the end {last.process}: {last.what()}")
        return lines
