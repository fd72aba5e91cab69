"""Why a process ended, in words that name it, its cause and what to do."""

import signal
from collections.abc import Mapping, Sequence
from typing import TypeAlias, assert_never

import attrs

LINES_SHOWN = 5
"""Of the process's own last lines: with those around them a report has ten lines at most."""


@attrs.frozen
class Told:
    """It said so itself."""

    what: str
    hint: str


@attrs.frozen
class Exited:
    code: int


@attrs.frozen
class Killed:
    signal: int


@attrs.frozen
class Silent:
    """It was killed because it gave no sign of life."""

    seconds: int


@attrs.frozen
class Stalled:
    """It was killed because it had work and completed no step."""

    seconds: int


Cause: TypeAlias = Told | Exited | Killed | Silent | Stalled

MEMORY_HINT = "give each replica less (--kv-memory, --max-model-len) or start fewer (--replicas)"
REPORT_HINT = "this is a fault of LMPool or of this machine; all lines of the process stand above"

SIGNAL_HINTS: Mapping[int, str] = {
    signal.SIGKILL: f"something killed it, often the kernel when memory ran out (see dmesg): {MEMORY_HINT}",
    signal.SIGBUS: "memory that was promised could not be had: a container's memory or /dev/shm is too small",
    signal.SIGILL: "a library was built for another processor: install a build of torch for this one",
    signal.SIGSEGV: "a native library crashed: try another --dtype or --device, or another version of torch",
}

LINE_HINTS = (
    ("No module named 'torch'", "install the model packages: pip install 'lmpool[model]'"),
    ("No module named 'transformers'", "install the model packages: pip install 'lmpool[model]'"),
    ("No module named", "a Python package is missing: install LMPool again with what it needs"),
    ("cannot open shared object file", "a system library is missing: install it, or another build of torch"),
    ("MemoryError", MEMORY_HINT),
    ("out of memory", MEMORY_HINT),
    ("Cannot allocate memory", MEMORY_HINT),
    ("No space left on device", "make room on the disk that the lines above name"),
)


@attrs.frozen
class Fault:
    process: str
    cause: Cause
    lines: tuple[str, ...]
    """What the process last wrote, oldest first."""

    def what(self) -> str:
        match self.cause:
            case Told(what=what):
                return what
            case Exited(code=code):
                return f"ended with exit code {code}"
            case Killed(signal=number):
                return f"was killed by signal {number} ({_signal_name(number)}, exit code {128 + number})"
            case Silent(seconds=seconds):
                return f"gave no sign of life for {seconds} s and was killed"
            case Stalled(seconds=seconds):
                return f"had work and completed no step for {seconds} s, and was killed"
            case _:
                assert_never(self.cause)

    def hint(self) -> str:
        match self.cause:
            case Told(hint=hint):
                return hint
            case Exited():
                return _line_hint(self.lines)
            case Killed(signal=number):
                return SIGNAL_HINTS.get(number, REPORT_HINT)
            case Silent() | Stalled():
                return (
                    "a device or the machine is stuck or overloaded; --silence-seconds and --stall-seconds allow more"
                )
            case _:
                assert_never(self.cause)

    def report(self) -> list[str]:
        """At most eight lines."""
        shown = [] if isinstance(self.cause, Told) else self.lines[-LINES_SHOWN:]
        told = [f"its last lines:{'' if shown else ' none'}", *(f"  {line}" for line in shown)]
        return [
            f"{self.process}: {self.what()}",
            *([] if isinstance(self.cause, Told) else told),
            f"hint: {self.hint()}",
        ]


def unstarted(error: OSError) -> Told:
    """The system refused to start the process at all."""
    return Told(f"could not be started: {error.strerror}", MEMORY_HINT)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _line_hint(lines: Sequence[str]) -> str:
    for line in reversed(lines):
        for part, hint in LINE_HINTS:
            if part in line:
                return hint
    return REPORT_HINT
