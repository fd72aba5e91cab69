"""`lmpool serve`: a supervisor with an HTTP ingress, ended by signals or by its own terminal state."""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from lmpool.io.errors import StartFailed
from lmpool.io.settings.tree import Settings
from lmpool.io.supervision.journal import quote_json
from lmpool.io.supervision.listener import listen, url_of
from lmpool.io.supervision.supervisor import Supervisor


async def serve(settings: Settings) -> int:
    """The exit code: 0 after a signal, 1 if the start failed or the server gave up, 128 + signal if a second one came
    before the end. Raises ListenError."""
    listener = listen(settings.http.host, settings.http.port)
    say = _VOICES[settings.log.log_format]
    supervisor = Supervisor(settings, listener, say)
    try:
        with _signals() as signals:
            running = asyncio.create_task(_run(supervisor, url_of(settings.http.host, listener), say))
            signalled = asyncio.create_task(signals.get())
            await asyncio.wait((running, signalled), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                signalled.cancel()
                return running.result()
            drain_s = settings.supervision.drain_seconds
            say(f"{signalled.result().name}: finishing what runs, at most {drain_s:g} s; a second one ends it now")
            return await _end(running, supervisor, signals, drain_s)
    finally:
        await supervisor.stop(0)


def _say_line(line: str) -> None:
    """For the operator; standard output is for programs that wait for `ready`."""
    print(line, file=sys.stderr, flush=True)


def _say_json(line: str) -> None:
    _say_line(quote_json("supervisor", line))


_VOICES: Mapping[str, Callable[[str], None]] = {"lines": _say_line, "json": _say_json}
"""By the name of the log format in the settings."""


async def _run(supervisor: Supervisor, url: str, say: Callable[[str], None]) -> int:
    """Until it fails, or is cancelled."""
    try:
        await supervisor.start()
        print(f"ready {url}", flush=True)
        lines = await supervisor.failed()
        await supervisor.stop(0)
    except StartFailed as error:
        lines = str(error).splitlines()
    for line in lines:
        say(line)
    return 1


async def _end(
    running: "asyncio.Task[int]", supervisor: Supervisor, signals: "asyncio.Queue[signal.Signals]", drain_s: float
) -> int:
    running.cancel()
    await asyncio.wait((running,))
    stopping = asyncio.create_task(supervisor.stop(drain_s))
    again = asyncio.create_task(signals.get())
    await asyncio.wait((stopping, again), return_when=asyncio.FIRST_COMPLETED)
    if stopping.done():
        again.cancel()
        stopping.result()
        return 0
    supervisor.kill()
    await stopping
    return 128 + again.result()


@contextmanager
def _signals() -> Iterator["asyncio.Queue[signal.Signals]"]:
    """INT and TERM, as they come."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, arrived.put_nowait, number)
    try:
        yield arrived
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
