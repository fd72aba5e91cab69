"""`lmpool serve`: a supervisor with an HTTP ingress, ended by signals or by its own terminal state."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lmpool.io.errors import StartFailed
from lmpool.io.listener import listen, url_of
from lmpool.io.settings import Settings
from lmpool.io.supervisor import Supervisor


def say(line: str) -> None:
    """For the operator; standard output is for programs that wait for `ready`."""
    print(line, file=sys.stderr, flush=True)


async def serve(settings: Settings) -> int:
    """The exit code: 0 after a signal, 1 if the start failed or the server gave up, 128 + signal if a second one came
    before the end. Raises ListenError."""
    listener = listen(settings.http.host, settings.http.port)
    supervisor = Supervisor(settings, listener, say)
    with _signals() as signals:
        running = asyncio.create_task(_run(supervisor, url_of(settings.http.host, listener)))
        signalled = asyncio.create_task(signals.get())
        await asyncio.wait((running, signalled), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            signalled.cancel()
            return running.result()
        drain_s = settings.supervision.drain_seconds
        say(f"{signalled.result().name}: finishing what runs, at most {drain_s:g} s; a second one ends it now")
        return await _end(running, supervisor, signals, drain_s)


async def _run(supervisor: Supervisor, url: str) -> int:
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
