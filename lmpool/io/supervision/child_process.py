"""The supervisor's end of one life of a child: a process in a session of its own, a channel, and its standard error."""

import asyncio
import os
import signal
import site
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import attrs

from lmpool.io.channel import ChannelError, Lines, decode_notice, encode_line
from lmpool.io.orders import Drain, Failed, Notice, Order
from lmpool.io.supervision.fault import Cause, Exited, Killed, Told

PROGRAM = (sys.executable, "-P", "-m", "lmpool", "child")
"""Of every child. It imports nothing from the folder that the operator happens to be in."""

LINES_KEPT = 20
LINE_BYTES_MAX = 16 << 10
"""A longer line of standard error is cut into several."""
READ_BYTES = 64 << 10
STOPPED = "T"
"""In the third field of /proc/N/stat."""


@attrs.frozen
class Launch:
    """How a child is started."""

    name: str
    """What operators call it: `worker 1`."""
    order: Order
    environment: Mapping[str, str]
    descriptors: tuple[int, ...]
    """Open files that it inherits besides its channel."""
    program: Sequence[str]
    """What runs it; its name and the descriptor of its channel follow."""


class ChildProcess:
    """Runs from construction on, which raises OSError where the system has no room for it.

    `ended` gets its cause once everything that it wrote has been read and it is reaped.
    """

    def __init__(self, launch: Launch, on_notice: Callable[[Notice], None], on_line: Callable[[str], None]) -> None:
        self.name = launch.name
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        """The last that it wrote to standard error."""
        self._on_notice = on_notice
        self._on_line = on_line
        self._told: Told | None = None
        self._notices = Lines(READ_BYTES)
        self._text = Lines(LINE_BYTES_MAX)
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Cause] = self._loop.create_future()
        self._channel, theirs = socket.socketpair()
        self._errors, their_errors = os.pipe()
        os.set_blocking(self._errors, False)
        try:
            self._process = _start(launch, theirs.fileno(), their_errors)
        except OSError:
            self._channel.close()
            os.close(self._errors)
            raise
        finally:
            theirs.close()
            os.close(their_errors)
        self._handle = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._channel.fileno(), self._read_channel)
        self._loop.add_reader(self._errors, self._read_errors)
        self._loop.add_reader(self._handle, self._finish)
        self._send(encode_line(launch.order))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_stopped(self) -> bool:
        """By a signal. It is not reaped before `ended`, so that its number is its own."""
        if self.ended.done():
            return False
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == STOPPED

    def drain(self, seconds: float) -> None:
        if not self.ended.done():
            self._send(encode_line(Drain(seconds)))

    def kill(self) -> None:
        """With everything that it has started."""
        if not self.ended.done():
            os.killpg(self._process.pid, signal.SIGKILL)

    def _send(self, line: bytes) -> None:
        """Far below what a socket takes at once. Where nobody is left to read it, the end is on its way."""
        with suppress(OSError):
            self._channel.sendall(line)

    def _read_channel(self) -> bool:
        """Whether there may be more."""
        try:
            data = self._channel.recv(READ_BYTES, socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionError):
            return False
        if not data:
            self._loop.remove_reader(self._channel.fileno())
            return False
        try:
            for line in self._notices.feed(data):
                self._note(decode_notice(line))
        except ChannelError as error:
            self._told = self._told or Told(f"sent what is no notice: {error}", "processes of two versions are mixed")
            self.kill()
        return True

    def _note(self, notice: Notice) -> None:
        if isinstance(notice, Failed) and self._told is None:
            self._told = Told(notice.what, notice.hint)
        self._on_notice(notice)

    def _read_errors(self) -> bool:
        """Whether there may be more."""
        try:
            data = os.read(self._errors, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._errors)
            return False
        for line in self._text.feed(data):
            self._keep(line)
        return True

    def _keep(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        self.lines.append(text)
        self._on_line(text)

    def _finish(self) -> None:
        """The process has exited. It is reaped last, so that its number cannot mean another group before."""
        while self._read_channel():
            pass
        while self._read_errors():
            pass
        rest = self._text.rest()
        if rest:
            self._keep(rest)
        os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        for reader in (self._handle, self._errors, self._channel.fileno()):
            self._loop.remove_reader(reader)
        os.close(self._handle)
        os.close(self._errors)
        self._channel.close()
        self.ended.set_result(self._told or (Killed(-code) if code < 0 else Exited(code)))


def _start(launch: Launch, channel: int, errors: int) -> "subprocess.Popen[bytes]":
    """A session of its own keeps the terminal's Ctrl+C to the supervisor, which then orders what is to happen."""
    return subprocess.Popen(
        [*launch.program, launch.name.replace(" ", "-"), str(channel)],
        stdin=subprocess.DEVNULL,
        stdout=errors,
        stderr=errors,
        env=dict(launch.environment),
        pass_fds=(channel, *launch.descriptors),
        start_new_session=True,
    )


def python_path(environment: Mapping[str, str]) -> Mapping[str, str]:
    """`environment`, so that children import the very package that their parent runs, also from a checkout."""
    root = str(Path(__file__).resolve().parents[3])
    if root in site.getsitepackages():
        return environment
    rest = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": f"{root}{os.pathsep}{rest}" if rest else root}
