"""Keeps one post filled: starts its child, watches it, and after a pause starts the next life, while it may."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import assert_never

import attrs

from lmpool.core.ids import Epoch
from lmpool.io.orders import Beat, Failed, Notice, Order, Prepared, Progress, Ready
from lmpool.io.settings.tree import SupervisionSettings
from lmpool.io.supervision.child_process import ChildProcess, Launch
from lmpool.io.supervision.fault import Cause, Fault, Silent, Stalled, Told, unstarted
from lmpool.io.supervision.journal import Journal
from lmpool.io.supervision.restart import RestartBudget
from lmpool.io.supervision.vigil import Verdict, Vigil

TICK_S = 1.0


class PostState(Enum):
    STARTING = "starting"
    SERVING = "serving"
    PAUSED = "paused"
    ENDED = "ended"


@attrs.frozen
class Post:
    """What has to run, life after life."""

    name: str
    order: Callable[[Epoch], Order]
    environment: Mapping[str, str]
    descriptors: tuple[int, ...]
    program: Sequence[str]


class Keeper:
    def __init__(
        self,
        post: Post,
        settings: SupervisionSettings,
        journal: Journal,
        next_epoch: Callable[[], Epoch],
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` hears of each new `state`."""
        self.post = post
        self.state = PostState.STARTING
        self.child: ChildProcess | None = None
        """The present or last life."""
        self._settings = settings
        self._journal = journal
        self._next_epoch = next_epoch
        self._on_change = on_change
        self._budget = RestartBudget(
            settings.restarts,
            settings.restart_pause_seconds,
            settings.restart_pause_max_seconds,
            settings.healthy_seconds / TICK_S,
        )
        self._vigil = Vigil(settings.silence_seconds, settings.stall_seconds)
        self._has_served = False

    async def keep(self) -> Fault:
        """Returns with the last fault when the budget is spent, or when the first life says that it cannot work."""
        while True:
            fault = await self._live()
            self._journal.fault(fault)
            is_hopeless = isinstance(fault.cause, Told) and not self._has_served
            pause = None if is_hopeless else self._budget.take()
            if pause is None:
                self._change(PostState.ENDED)
                return fault
            self._change(PostState.PAUSED)
            self._journal.say(f"{self.post.name}: {fault.what()}; starting again in {pause:g} s")
            await asyncio.sleep(pause)

    async def _live(self) -> Fault:
        """One life, from start to end."""
        epoch = self._next_epoch()
        post = self.post
        name = post.name
        launch = Launch(post.name, post.order(epoch), post.environment, post.descriptors, post.program)
        self._vigil = Vigil(self._settings.silence_seconds, self._settings.stall_seconds)
        self._journal.started(name)
        self._change(PostState.STARTING)
        try:
            child = ChildProcess(launch, self._notice, lambda line: self._journal.written(name, line))
        except OSError as error:
            return Fault(name, unstarted(error), ())
        self.child = child
        cause = await self._watch(child)
        return Fault(name, cause, tuple(child.lines))

    async def _watch(self, child: ChildProcess) -> Cause:
        while True:
            await asyncio.wait((child.ended,), timeout=TICK_S)
            if child.ended.done():
                return child.ended.result()
            if self.state is PostState.SERVING:
                self._budget.serve()
            verdict = self._vigil.tick(is_stopped=child.is_stopped)
            match verdict:
                case Verdict.WELL:
                    continue
                case Verdict.SILENT:
                    cause: Cause = Silent(self._settings.silence_seconds)
                case Verdict.STALLED:
                    cause = Stalled(self._settings.stall_seconds)
                case _:
                    assert_never(verdict)
            child.kill()
            await asyncio.wait((child.ended,))
            return cause

    def _notice(self, notice: Notice) -> None:
        match notice:
            case Beat():
                self._vigil.beat(notice)
                if self._vigil.steps:
                    self._budget.refill()
            case Progress(text=text):
                self._journal.progress(self.post.name, text)
            case Ready(facts=facts):
                self._has_served = True
                self._journal.ready(self.post.name, facts)
                self._change(PostState.SERVING)
            case Failed() | Prepared():
                pass  # a failure is told with the end of the process
            case _:
                assert_never(notice)

    def _change(self, state: PostState) -> None:
        self.state = state
        self._on_change()
