"""Starts the processes of one run, watches and restarts them, and ends them. Nobody else does."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

from lmpool.core.ids import Epoch
from lmpool.io.errors import StartFailed
from lmpool.io.log import FORMAT_VARIABLE
from lmpool.io.orders import Notice, Prepared, PrepareOrder, Progress
from lmpool.io.settings.tree import Settings
from lmpool.io.supervision.child_process import PROGRAM, ChildProcess, Launch, python_path
from lmpool.io.supervision.fault import Fault, unstarted
from lmpool.io.supervision.journal import QUOTES, WAITING_PAUSE_S, Journal
from lmpool.io.supervision.keeper import Keeper, PostState
from lmpool.io.supervision.machine import usual_cache_folder, usual_run_parent
from lmpool.io.supervision.posts import Run, control_post, ingress_post, policy_line, reading_of, scale_of, worker_post
from lmpool.io.supervision.run_folder import RunFolder, RunFolderError
from lmpool.io.topology import Reading, TopologyError

END_GRACE_S = 5.0
"""For a process that has nothing left to do, before it is killed."""


class Supervisor:
    """One run: `start` once, then `failed` tells of its terminal state, and `stop` ends it in order.

    Has no signal handlers and ends no process but its own children. With a `listener` an HTTP ingress is one of them;
    without, the embedding program is the ingress.
    """

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket | None,
        say: Callable[[str], None],
        program: Sequence[str] = PROGRAM,
    ) -> None:
        """`say` gets lines for the operator. The listener is closed by `stop`. `program` runs the children."""
        self._program = program
        self._settings = settings
        self._listener = listener
        self._journal = Journal(say, QUOTES[settings.log.log_format], time.monotonic)
        self._epochs = count(1)
        self._keepers: list[Keeper] = []
        self._keeping: list[asyncio.Task[Fault]] = []
        self._preparing: ChildProcess | None = None
        self._folder: RunFolder | None = None
        self._changed = asyncio.Event()

    async def start(self) -> Run:
        """Until every process is ready. Raises StartFailed, having ended what it had begun."""
        saying = asyncio.create_task(self._say_waiting())
        try:
            run = await self._begin()
            await self._all_serving()
            return run
        except BaseException:
            self.kill()
            await self.stop(0)
            raise
        finally:
            saying.cancel()

    async def failed(self) -> list[str]:
        """Waits for the terminal state and returns its lines, the first cause in front."""
        done, _ = await asyncio.wait(self._keeping, return_when=asyncio.FIRST_COMPLETED)
        return self._journal.end(done.pop().result(), "the server ends")

    def next_epoch(self) -> Epoch:
        """For a process of this run, also for the program that embeds it."""
        return Epoch(next(self._epochs))

    async def stop(self, drain_s: float) -> None:
        """Lets the HTTP ingress finish running requests for `drain_s`, then ends everything. Safe to call again."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        front = [keeper.child for keeper in self._keepers if keeper.post.descriptors and keeper.child is not None]
        rest = [keeper.child for keeper in self._keepers if not keeper.post.descriptors and keeper.child is not None]
        await _end(front, drain_s)
        await _end(rest if self._preparing is None else [*rest, self._preparing], 0)
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def kill(self) -> None:
        """Ends every child at once; `stop` then has nothing to wait for."""
        for child in (self._preparing, *(keeper.child for keeper in self._keepers)):
            if child is not None:
                child.kill()

    async def _begin(self) -> Run:
        """Everything is started; nothing need be ready yet."""
        environment = {**os.environ, FORMAT_VARIABLE: self._settings.log.log_format}
        supervision = self._settings.supervision
        identity = secrets.token_hex(8)
        scale = scale_of(self._settings, environment)
        for line in (*scale.lines, policy_line(self._settings)):
            self._journal.say(line)
        try:
            self._folder = RunFolder((supervision.run_folder or usual_run_parent(environment)).absolute(), identity)
        except RunFolderError as error:
            raise StartFailed(str(error)) from error
        reading = await self._reading(scale.replicas, environment)
        prepared = await self._prepare()
        self._journal.say(f"model {prepared}")
        run = Run(identity, self._folder.path, prepared, scale, reading, self._settings, self._program)
        posts = [
            control_post(run, environment),
            *(worker_post(run, rank, environment) for rank in range(scale.replicas)),
        ]
        if self._listener is not None:
            posts.append(ingress_post(run, self._listener.fileno(), environment))
        for post in posts:
            self._keepers.append(Keeper(post, supervision, self._journal, self.next_epoch, self._post_changed))
        self._keeping = [asyncio.create_task(keeper.keep()) for keeper in self._keepers]
        return run

    async def _reading(self, replicas: int, environment: Mapping[str, str]) -> Reading:
        """Raises StartFailed."""
        try:
            return await asyncio.to_thread(reading_of, self._settings, replicas, environment)
        except TopologyError as error:
            hint = "list the pairs with --transfer-pairs, or start with --placement off"
            raise StartFailed(f"between which replicas blocks can be copied is not known: {error}; {hint}") from error

    async def _prepare(self) -> Path:
        """The model's folder, which a child makes, downloads or finds."""
        found: list[str] = []

        def hear(notice: Notice) -> None:
            match notice:
                case Progress(text=text):
                    self._journal.progress("prepare", text)
                case Prepared(model_folder=folder):
                    found.append(folder)
                case _:
                    pass  # a failure is told with the end of the process

        model = self._settings.model
        cache = model.cache_folder or usual_cache_folder(os.environ)
        order = PrepareOrder(model.model, str(cache.absolute()), model.max_model_len)
        self._journal.started("prepare")
        launch = Launch("prepare", order, python_path(os.environ), (), self._program)
        try:
            child = ChildProcess(launch, hear, lambda line: self._journal.written("prepare", line))
        except OSError as error:
            raise self._start_failed(Fault("prepare", unstarted(error), ())) from error
        self._preparing = child
        await asyncio.wait((child.ended,))
        self._preparing = None
        self._journal.ended("prepare")
        if not found:
            raise self._start_failed(Fault("prepare", child.ended.result(), tuple(child.lines)))
        return Path(found[0])

    async def _all_serving(self) -> None:
        while not self._is_serving():
            self._changed.clear()
            changing = asyncio.create_task(self._changed.wait())
            await asyncio.wait((changing, *self._keeping), return_when=asyncio.FIRST_COMPLETED)
            changing.cancel()
            for task in self._keeping:
                if task.done():
                    raise self._start_failed(task.result())

    def _is_serving(self) -> bool:
        return all(keeper.state is PostState.SERVING for keeper in self._keepers)

    def _post_changed(self) -> None:
        self._changed.set()
        if self._is_serving():
            self._journal.all_well()

    def _start_failed(self, last: Fault) -> StartFailed:
        return StartFailed("\n".join(self._journal.end(last, "the start failed")))

    async def _say_waiting(self) -> None:
        while True:
            await asyncio.sleep(WAITING_PAUSE_S / 2)
            self._journal.say_waiting()


async def _end(children: Sequence[ChildProcess], drain_s: float) -> None:
    """In order where they are able to, by force where not."""
    for child in children:
        child.drain(drain_s)
    ends = [child.ended for child in children]
    if ends:
        await asyncio.wait(ends, timeout=drain_s + END_GRACE_S)
    for child in children:
        child.kill()
    if ends:
        await asyncio.wait(ends)
