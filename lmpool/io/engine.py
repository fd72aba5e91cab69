"""The embedded engine: the pool inside an asyncio program, with control and replicas as its child processes."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType

import attrs

from lmpool.core.ids import RequestId, TransferId
from lmpool.core.messages.ingress_control import Decision, StateReported
from lmpool.io.errors import BadRequest, Draining, EngineClosed, LMPoolError, PoolLost, StartFailed
from lmpool.io.generation import Chat, Chunk, GenerationRequest, Prompt, SamplingParams
from lmpool.io.ingress import IngressAdapter, IngressPlace
from lmpool.io.log import get_log
from lmpool.io.pool import Pool
from lmpool.io.settings.sources import SettingsError, program_settings
from lmpool.io.settings.tree import Settings
from lmpool.io.supervision.posts import Run
from lmpool.io.supervision.supervisor import Supervisor
from lmpool.io.text.model_text import ModelText
from lmpool.io.transfer_order import TransferWish

LINK_WAIT_S = 30.0
"""Every process is ready by then, and a link takes milliseconds."""

_log = get_log("engine")


@attrs.frozen
class _Opened:
    """What an engine holds while it is open."""

    supervisor: Supervisor
    text: ModelText
    ingress: IngressAdapter
    pool: Pool
    watch: "asyncio.Task[None]"


class AsyncEngine:
    """Use it as `async with AsyncEngine(...) as engine`; any number of times, one after the other or side by side.

    It installs no signal handlers and keeps no global state. Every error of its own is an `LMPoolError`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        replicas: int | None = None,
        *,
        say: Callable[[str], None] | None = None,
        **knobs: object,
    ) -> None:
        """`model`: a folder, a GGUF file or a hub id; None: the bundled one. `knobs`: as `lmpool serve --help` names
        them, with underscores. `say` gets lines for the operator; without it they are logged. Raises StartFailed for
        settings that cannot be."""
        given = {"model": None if model is None else os.fspath(model), "replicas": replicas, **knobs}
        try:
            self._settings: Settings = program_settings(
                {name: value for name, value in given.items() if value is not None}
            )
        except SettingsError as error:
            raise StartFailed(str(error)) from error
        self._say = _log_line if say is None else say
        self._opened: _Opened | None = None
        self._lost: PoolLost | None = None

    async def __aenter__(self) -> "AsyncEngine":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Until every replica serves. Raises StartFailed."""
        assert self._opened is None, "the engine is open already"
        self._lost = None
        supervisor = Supervisor(self._settings, None, self._say)
        run = await supervisor.start()
        try:
            self._opened = await self._link(supervisor, run)
        except BaseException:
            await supervisor.stop(0)
            raise

    async def close(self) -> None:
        """Ends every process and frees everything. Requests that still run end with EngineClosed. Safe to repeat."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        opened.watch.cancel()
        await asyncio.gather(opened.watch, return_exceptions=True)
        await opened.ingress.close()
        opened.text.close()
        await opened.supervisor.stop(0)

    async def generate(
        self,
        prompt: str | Sequence[int] | Sequence[Mapping[str, str]] | Chat,
        sampling: SamplingParams | None = None,
        *,
        session: str = "",
        priority: int = 0,
        deadline_s: float | None = None,
        cache_salt: str | None = None,
        label: str = "",
    ) -> AsyncGenerator[Chunk, None]:
        """`prompt`: a text, token ids, or messages with `role` and `content`. Closing the generator, or cancelling who
        reads it, ends the request. Raises LMPoolError."""
        request = GenerationRequest(
            prompt=_prompt_of(prompt),
            sampling=SamplingParams() if sampling is None else sampling,
            session=session,
            priority=priority,
            deadline_s=deadline_s,
            cache_salt=cache_salt,
            label=label,
        )
        try:
            async with aclosing(self._pool().generate(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except Draining:
            raise self._why_closed() from None

    @property
    def tokens_max(self) -> int:
        """Longest context in force, prompt and output. Raises EngineClosed."""
        return self._pool().tokens_max

    async def pool_state(self) -> StateReported:
        """What control knows of every replica. Raises LMPoolError."""
        return await self._pool().pool_state()

    async def decisions(self, request: RequestId | None, limit: int) -> tuple[Decision, ...]:
        """The newest routes with every term; of one request, or all. Raises LMPoolError."""
        return await self._pool().decisions(request, limit)

    async def clear_cache(self) -> int:
        """Drops every cached block that no request uses, and says how many. Raises LMPoolError."""
        return await self._pool().clear_cache()

    async def transfer(self, wish: TransferWish) -> TransferId:
        """Begins a copy or a move of cached blocks between two replicas; `pool_state` tells what becomes of it. Raises
        LMPoolError."""
        return await self._pool().transfer(wish)

    def _pool(self) -> Pool:
        if self._opened is None or self._lost is not None:
            raise self._why_closed()
        return self._opened.pool

    def _why_closed(self) -> LMPoolError:
        return EngineClosed() if self._lost is None else self._lost

    async def _link(self, supervisor: Supervisor, run: Run) -> _Opened:
        text = await asyncio.to_thread(ModelText, run.model_folder)
        ingress = IngressAdapter(
            IngressPlace(
                run=run.id,
                run_folder=str(run.folder),
                epoch=supervisor.next_epoch(),
                replicas=run.scale.replicas,
                block_size=run.settings.pool.block_size,
                requests_max=run.settings.http.requests,
            )
        )
        try:
            ingress.dial()
            async with asyncio.timeout(LINK_WAIT_S):
                await ingress.all_linked()
        except BaseException as error:
            await ingress.close()
            text.close()
            if isinstance(error, TimeoutError):
                raise StartFailed("The replicas were ready, but could not be linked.") from None
            raise
        watch = asyncio.create_task(self._watch(supervisor, ingress))
        return _Opened(supervisor, text, ingress, Pool(ingress, text), watch)

    async def _watch(self, supervisor: Supervisor, ingress: IngressAdapter) -> None:
        """A process cannot be kept up, or the ingress has a fault: nothing more is taken, and what runs is ended."""
        failing = asyncio.create_task(supervisor.failed())
        try:
            await asyncio.wait((failing, ingress.fault), return_when=asyncio.FIRST_COMPLETED)
            lines = failing.result() if failing.done() else [f"the ingress failed: {ingress.fault.exception()!r}"]
        finally:
            failing.cancel()
        self._lost = PoolLost("\n".join(lines))
        _log.error("the pool is lost", cause=str(self._lost))
        await ingress.close()


def _prompt_of(prompt: str | Sequence[int] | Sequence[Mapping[str, str]] | Chat) -> Prompt:
    if isinstance(prompt, str | Chat):
        return prompt
    if prompt and all(isinstance(item, Mapping) for item in prompt):
        return Chat(tuple(item for item in prompt if isinstance(item, Mapping)))
    if all(isinstance(item, int) for item in prompt):
        return tuple(item for item in prompt if isinstance(item, int))
    raise BadRequest("A prompt is a text, token ids, or messages with role and content.", "prompt", "invalid_value")


def _log_line(line: str) -> None:
    _log.info(line)
