"""The embedded engine, with control and workers as real child processes and integers for a model."""

import asyncio
import gc
import os
import signal
import threading
from collections import Counter
from contextlib import aclosing
from pathlib import Path

import attrs
import pytest

from lmpool.core.messages.transfer import TransferMode, TransferShown
from lmpool.io.engine import AsyncEngine
from lmpool.io.errors import BadRequest, EngineClosed, PoolLost, StartFailed, TransferDenied
from lmpool.io.generation import Chunk, SamplingParams
from lmpool.io.transfer_order import TransferWish
from tests.io.loops import Run, on_both_loops
from tests.model_folder import write_tiny_folder

SHORT = SamplingParams(max_tokens=6, temperature=0)
ENDLESS = SamplingParams(max_tokens=3000, ignores_eos=True, seed=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps of 5 ms, so that something can happen meanwhile."""
    return write_tiny_folder(tmp_path_factory.mktemp("slow"), config={"step_ns": 5_000_000})


def silent(_: str) -> None:
    pass


def engine_of(model: Path, runs: Path, **knobs: object) -> AsyncEngine:
    return AsyncEngine(model, 2, say=silent, run_folder=runs, **knobs)


async def text_of(engine: AsyncEngine, prompt: str) -> str:
    return "".join([chunk.text async for chunk in engine.generate(prompt, SHORT)])


async def last_transfer(engine: AsyncEngine) -> TransferShown:
    """Once one is over."""
    while True:
        over = (await engine.pool_state()).transfers.over
        if over:
            return over[-1]
        await asyncio.sleep(0.01)


def children() -> list[int]:
    """Of this process, those that have ended and were not waited for included.

    Without what `multiprocessing` keeps as long as a process lives, once another test has used shared memory in it.
    """
    found: list[int] = []
    for thread in Path("/proc/self/task").iterdir():
        found += map(int, (thread / "children").read_text().split())
    return [pid for pid in found if b"multiprocessing.resource_tracker" not in commandline(pid)]


def commandline(pid: int) -> bytes:
    """Nothing of one that has ended."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def objects() -> Counter[str]:
    """Of this package's own classes, and tasks."""
    gc.collect()
    kinds = [type(item) for item in gc.get_objects()]
    own = [kind for kind in kinds if str(kind.__module__).startswith("lmpool.") or kind is asyncio.Task]
    return Counter(kind.__qualname__ for kind in own)


@on_both_loops
def test_every_form_of_a_prompt_is_answered(run: Run, model: Path, tmp_path: Path) -> None:
    async def body() -> None:
        async with engine_of(model, tmp_path) as engine:
            once = await text_of(engine, "hello world")
            assert await text_of(engine, "hello world") == once
            chat = [chunk async for chunk in engine.generate([{"role": "user", "content": "hello"}], SHORT)]
            assert chat[-1].finish in ("stop", "length")
            tokens = [chunk async for chunk in engine.generate([1, 2, 3], SHORT, session="s", priority=-1)]
            assert tokens[0].prompt_tokens == 3
            assert len((await engine.pool_state()).ranks) == 2
            (decision,) = await engine.decisions(tokens[0].request, 1)
            assert decision.rank in (0, 1)
            with pytest.raises(BadRequest):
                await anext(engine.generate([1] * (engine.tokens_max + 1), SHORT))

    run(body())


def test_a_program_may_have_a_prefix_copied_and_hears_how_long_that_took(model: Path, tmp_path: Path) -> None:
    async def body() -> None:
        async with engine_of(model, tmp_path, policy="round-robin", placement="off", transfer_checksum="on") as engine:
            prompt = [3 + place % 200 for place in range(70)]
            (*_, first) = [chunk async for chunk in engine.generate(prompt, SHORT)]
            (decision,) = await engine.decisions(first.request, 1)
            assert decision.rank is not None
            source, target = int(decision.rank), 1 - decision.rank
            wish = TransferWish(tuple(prompt), b"", "default", None, source, target, TransferMode.COPY, 5.0)
            transfer = await engine.transfer(wish)
            shown = await last_transfer(engine)
            assert (shown.transfer, shown.outcome, shown.blocks) == (transfer, "published", 4)
            assert shown.copy_ns is not None
            assert shown.took_ns is not None
            assert 0 < shown.copy_ns < shown.took_ns
            (*_, second) = [chunk async for chunk in engine.generate(prompt, SHORT)]
            assert second.cached_tokens == 64
            with pytest.raises(TransferDenied):
                await engine.transfer(attrs.evolve(wish, target=source))
            with pytest.raises(BadRequest, match="There is no rank 7: ranks are 0 to 1"):
                await engine.transfer(attrs.evolve(wish, target=7))

    asyncio.run(body())


@pytest.mark.slow
def test_b63_opened_and_closed_ten_times_it_leaves_nothing(model: Path, tmp_path: Path) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)}

    async def body() -> None:
        engine = engine_of(model, tmp_path)
        counts = []
        for _ in range(10):
            async with engine:
                assert await text_of(engine, "hello world")
            assert children() == []
            assert os.listdir(tmp_path) == []
            counts.append((descriptors(), threading.active_count(), objects()))
        assert counts[-1] == counts[1]
        with pytest.raises(EngineClosed):
            await text_of(engine, "hello")

    asyncio.run(body())
    assert handlers == {number: signal.getsignal(number) for number in handlers}


def test_two_engines_side_by_side(model: Path, tmp_path: Path) -> None:
    async def body() -> None:
        async with engine_of(model, tmp_path) as one, engine_of(model, tmp_path) as other:
            assert await text_of(one, "hello world") == await text_of(other, "hello world")

    asyncio.run(body())


def test_closing_the_iterator_or_its_task_cancels_the_request(slow_model: Path, tmp_path: Path) -> None:
    async def body() -> None:
        async with engine_of(slow_model, tmp_path) as engine:
            async with aclosing(engine.generate("hello", ENDLESS)) as chunks:
                await anext(chunks)
            begun = asyncio.Event()

            async def read() -> None:
                async for _ in engine.generate("hello", ENDLESS):
                    begun.set()

            reading = asyncio.create_task(read())
            await begun.wait()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            async with asyncio.timeout(10):
                while any(rank.decoding or rank.booked for rank in (await engine.pool_state()).ranks):
                    pass

    asyncio.run(body())


def test_a_killed_worker_costs_a_stream_nothing(slow_model: Path, tmp_path: Path) -> None:
    async def body() -> None:
        async with engine_of(slow_model, tmp_path) as engine:
            sampling = SamplingParams(max_tokens=200, ignores_eos=True, seed=5)
            wanted = "".join([chunk.text async for chunk in engine.generate("hello world", sampling)])
            pieces: list[Chunk] = []
            async for chunk in engine.generate("hello world", sampling):
                pieces.append(chunk)
                if len(pieces) == 20:
                    (decision,) = await engine.decisions(chunk.request, 1)
                    os.kill(worker_process(decision.rank), signal.SIGKILL)
            assert "".join(chunk.text for chunk in pieces) == wanted
            assert pieces[-1].completion_tokens == 200

    asyncio.run(body())


def worker_process(rank: int | None) -> int:
    name = f"worker-{rank}".encode()
    return next(pid for pid in children() if name in commandline(pid).split(b"\0"))


def test_closing_while_a_request_runs_ends_it_with_an_error(slow_model: Path, tmp_path: Path) -> None:
    async def body() -> None:
        engine = engine_of(slow_model, tmp_path)
        await engine.open()
        chunks = engine.generate("hello", ENDLESS)
        await anext(chunks)
        await engine.close()
        await engine.close()
        with pytest.raises(EngineClosed):
            async for _ in chunks:
                pass
        assert children() == []

    asyncio.run(body())


async def asking_on(engine: AsyncEngine) -> None:
    while True:
        await text_of(engine, "hello")


def test_a_pool_that_cannot_be_kept_up_says_why(slow_model: Path, tmp_path: Path) -> None:
    async def body() -> None:
        async with engine_of(slow_model, tmp_path, restarts=0) as engine:
            os.kill(worker_process(0), signal.SIGKILL)
            with pytest.raises(PoolLost, match="SIGKILL"):
                await asking_on(engine)

    asyncio.run(body())


def test_a_start_that_fails_is_an_exception_with_its_cause(tmp_path: Path) -> None:
    async def body() -> None:
        with pytest.raises(StartFailed, match="nowhere"):
            await AsyncEngine(tmp_path / "nowhere", 1, say=silent, run_folder=tmp_path / "runs").open()
        assert children() == []

    asyncio.run(body())


def test_settings_that_cannot_be_are_told_at_once() -> None:
    with pytest.raises(StartFailed, match="kv_blokcs"):
        AsyncEngine(None, kv_blokcs=3)


def test_an_engine_that_is_not_open_says_so() -> None:
    async def body() -> None:
        with pytest.raises(EngineClosed):
            await text_of(AsyncEngine(None), "hello")

    asyncio.run(body())
