"""Requests to text over real links: control and two workers with integers for a model, on one event loop."""

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import uvloop

from lmpool.core.effects import Outcome
from lmpool.core.events import PeerJoined
from lmpool.core.ids import Epoch, Peer, Rank, Role
from lmpool.core.messages.worker_control import WorkerJoined
from lmpool.core.sampling import StopSettings
from lmpool.io.errors import BadRequest, DeadlinePassed, Draining, LMPoolError, NoReplica
from lmpool.io.generation import Chat, Chunk, GenerationRequest, Prompt, SamplingParams
from lmpool.io.ingress import IngressAdapter, IngressPlace
from lmpool.io.link import LINK_BOUNDS, Identity, LinkEvent, Links, worker_address
from lmpool.io.orders import Ready
from lmpool.io.pool import Pool
from lmpool.io.request_check import sampling_settings
from lmpool.io.text.model_text import ModelText
from lmpool.sim.integer_model import reference_tokens
from tests.io.cluster import BLOCK, WAIT_S, Cluster, Life
from tests.io.loops import Run, on_both_loops
from tests.io.wire_records import EXAMPLES
from tests.model_folder import tiny_vocabulary, write_tiny_folder

VOCABULARY = len(tiny_vocabulary())
TOKENS_MAX = 1024
PROMPT = tuple(range(40, 40 + 3 * BLOCK + 5))
LONG = SamplingParams(max_tokens=400, temperature=0.9, seed=11, ignores_eos=True)


@attrs.define
class Place:
    """A pool and everything behind it."""

    pool: Pool
    ingress: IngressAdapter
    cluster: Cluster
    control: Life
    workers: dict[int, Life]
    epoch: int = 60

    async def replace_worker(self, rank: int) -> None:
        self.epoch += 1
        self.workers[rank] = self.cluster.start_worker(rank, self.epoch)
        await self.workers[rank].notice(Ready)

    async def rank_of(self, chunk: Chunk) -> int:
        (decision,) = await self.ingress.decisions((chunk.request,), 1)
        assert decision.rank is not None
        return decision.rank

    async def settled(self) -> None:
        """Until control and ingress have nothing open."""
        async with asyncio.timeout(WAIT_S):
            while (await self.ingress.pool_state()).bookings or self.ingress.snapshot().choices:
                pass


@asynccontextmanager
async def place(folder: Path) -> AsyncIterator[Place]:
    model = write_tiny_folder(folder / "model", model_tokens_max=TOKENS_MAX)
    cluster = Cluster(folder, model, 400)
    text = ModelText(model)
    ingress = IngressAdapter(IngressPlace("run-1", str(folder), Epoch(50), 2, BLOCK, requests_max=16))
    try:
        control, workers = cluster.start_control(1), {rank: cluster.start_worker(rank, 2 + rank) for rank in range(2)}
        for life in (control, *workers.values()):
            await life.notice(Ready)
        ingress.dial()
        await asyncio.wait_for(ingress.all_linked(), WAIT_S)
        yield Place(Pool(ingress, text), ingress, cluster, control, workers)
    finally:
        await ingress.close()
        text.close()
        await cluster.close()


def run_where_servers_end(body: Coroutine[Any, Any, None]) -> None:
    """Servers run on uvloop, also in production. asyncio of 3.11 forgets a connection accepted as its server closes."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(body)


def ask(prompt: Prompt, sampling: SamplingParams, **fields: object) -> GenerationRequest:
    return attrs.evolve(GenerationRequest(prompt=prompt, sampling=sampling), **fields)  # type: ignore[arg-type]


def expected(sampling: SamplingParams, choice: int) -> tuple[int, ...]:
    assert sampling.seed is not None
    assert sampling.max_tokens is not None
    stop = StopSettings(sampling.max_tokens, 0, (), ())
    return reference_tokens(VOCABULARY, PROMPT, sampling_settings(sampling, sampling.seed), stop, choice)


async def tokens_of(chunks: AsyncIterator[Chunk]) -> dict[int, tuple[int, ...]]:
    """By choice."""
    tokens: dict[int, tuple[int, ...]] = {}
    async for chunk in chunks:
        tokens[chunk.choice] = tokens.get(chunk.choice, ()) + chunk.tokens
    return tokens


@on_both_loops
def test_b14_choices_differ_and_are_repeatable(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with place(tmp_path) as here:
            sampling = attrs.evolve(LONG, choices=3, max_tokens=24)
            wanted = {choice: expected(sampling, choice) for choice in range(3)}
            assert len(set(wanted.values())) == 3
            assert await tokens_of(here.pool.generate(ask(PROMPT, sampling))) == wanted
            assert await tokens_of(here.pool.generate(ask(PROMPT, sampling))) == wanted

    run(body())


def test_a_stream_survives_its_worker_and_then_the_next(tmp_path: Path) -> None:
    async def body() -> None:
        async with place(tmp_path) as here:
            tokens: list[int] = []
            losses = 0
            async with aclosing(here.pool.generate(ask(PROMPT, LONG))) as chunks:
                async for chunk in chunks:
                    tokens += chunk.tokens
                    assert chunk.completion_tokens == len(tokens)
                    if losses < 2 and len(tokens) > 100 * (losses + 1):
                        losses += 1
                        rank = await here.rank_of(chunk)
                        await here.workers[rank].end()
                        await here.replace_worker(rank)
            assert tuple(tokens) == expected(LONG, 0)
            assert here.ingress.snapshot().resumed == 2

    run_where_servers_end(body())


def test_a_stream_waits_while_no_replica_is_up(tmp_path: Path) -> None:
    async def body() -> None:
        async with place(tmp_path) as here:
            tokens: list[int] = []
            async with aclosing(here.pool.generate(ask(PROMPT, LONG))) as chunks:
                tokens += (await anext(chunks)).tokens
                for life in here.workers.values():
                    await life.end()
                assert not here.pool.is_ready
                resuming = asyncio.create_task(tokens_of(chunks))
                await here.replace_worker(0)
                tokens += (await asyncio.wait_for(resuming, WAIT_S))[0]
            assert tuple(tokens) == expected(LONG, 0)

    run_where_servers_end(body())


def test_requests_are_served_without_control_and_a_new_one_takes_over(tmp_path: Path) -> None:
    async def body() -> None:
        async with place(tmp_path) as here:
            sampling = attrs.evolve(LONG, max_tokens=20)
            async with aclosing(here.pool.generate(ask(PROMPT, LONG))) as running:
                tokens = list((await anext(running)).tokens)
                await here.control.end()
                assert await tokens_of(here.pool.generate(ask(PROMPT, sampling))) == {0: expected(sampling, 0)}
                assert here.ingress.snapshot().degraded == 1
                with pytest.raises(NoReplica):
                    await here.pool.pool_state()
                await here.cluster.start_control(70).notice(Ready)
                await asyncio.wait_for(here.ingress.all_linked(), WAIT_S)
                tokens += (await tokens_of(running))[0]
            assert tuple(tokens) == expected(LONG, 0)
            assert await tokens_of(here.pool.generate(ask(PROMPT, sampling))) == {0: expected(sampling, 0)}
            assert here.ingress.snapshot().degraded == 1
            await here.settled()

    run_where_servers_end(body())


@on_both_loops
def test_b16_who_stops_reading_frees_everything(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with place(tmp_path) as here:
            for _ in range(5):
                async with aclosing(here.pool.generate(ask(PROMPT, LONG))) as chunks:
                    await anext(chunks)
            reading = [asyncio.create_task(tokens_of(here.pool.generate(ask(PROMPT, LONG)))) for _ in range(5)]
            await asyncio.sleep(0)
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
            await here.settled()
            outcomes = dict(here.ingress.snapshot().outcomes)
            assert outcomes[Outcome.CANCELLED] >= 5
            state = await here.pool.pool_state()
            assert sum(rank.decoding + rank.waiting + rank.prefilling for rank in state.ranks) == 0
            assert await here.pool.clear_cache() >= 3
            cleared = await here.pool.clear_cache()
            assert cleared == 0

    run(body())


def test_a_stop_string_ends_the_work_as_well(tmp_path: Path) -> None:
    async def body() -> None:
        async with place(tmp_path) as here:
            free = attrs.evolve(LONG, max_tokens=60)
            text = "".join([chunk.text async for chunk in here.pool.generate(ask(PROMPT, free))])
            stop = text[20:23]
            chunks = [chunk async for chunk in here.pool.generate(ask(PROMPT, attrs.evolve(free, stop=(stop,))))]
            assert "".join(chunk.text for chunk in chunks) == text[: text.index(stop)]
            assert chunks[-1].finish == "stop"
            assert chunks[-1].completion_tokens < 60
            await here.settled()

    asyncio.run(body())


def test_b12_the_edges_of_the_context(tmp_path: Path) -> None:
    async def body() -> None:
        async with place(tmp_path) as here:
            assert here.pool.tokens_max == TOKENS_MAX
            for prompt_tokens in (TOKENS_MAX - 2, TOKENS_MAX - 1):
                for wish in (None, 1, 500):
                    sampling = attrs.evolve(LONG, max_tokens=wish)
                    tokens = await tokens_of(here.pool.generate(ask((5,) * prompt_tokens, sampling)))
                    assert len(tokens[0]) == min(wish or 500, TOKENS_MAX - prompt_tokens)
            for prompt_tokens in (TOKENS_MAX, TOKENS_MAX + 1):
                with pytest.raises(
                    BadRequest, match=f"{TOKENS_MAX} tokens.* {prompt_tokens} tokens.* 7 were"
                ) as caught:
                    await tokens_of(here.pool.generate(ask((5,) * prompt_tokens, SamplingParams(max_tokens=7))))
                assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")

    asyncio.run(body())


@pytest.mark.parametrize(
    ("prompt", "sampling", "fields", "param"),
    [
        ("", SamplingParams(), {}, "prompt"),
        ((), SamplingParams(), {}, "prompt"),
        ((VOCABULARY,), SamplingParams(), {}, "prompt"),
        ((-1,), SamplingParams(), {}, "prompt"),
        ("\ud800", SamplingParams(), {}, "prompt"),
        (Chat(()), SamplingParams(), {}, "messages"),
        (Chat(({"role": "user"},)), SamplingParams(), {}, "messages[0].content"),
        ("a", SamplingParams(choices=0), {}, "n"),
        ("a", SamplingParams(temperature=float("nan")), {}, "temperature"),
        ("a", SamplingParams(temperature=-1), {}, "temperature"),
        ("a", SamplingParams(top_p=2), {}, "top_p"),
        ("a", SamplingParams(logit_bias=((999_999, 1.0),)), {}, "logit_bias"),
        ("a", SamplingParams(stop=("",)), {}, "stop"),
        ("a", SamplingParams(stop=("a",) * 17), {}, "stop"),
        ("a", SamplingParams(stop_token_ids=(VOCABULARY,)), {}, "stop_token_ids"),
        ("a", SamplingParams(max_tokens=0), {}, "max_tokens"),
        ("a", SamplingParams(max_tokens=3, min_tokens=4), {}, "min_tokens"),
        ("a", SamplingParams(logprobs=21), {}, "logprobs"),
        ("a", SamplingParams(), {"priority": 9}, "priority"),
        ("a", SamplingParams(), {"session": "s" * 257}, "session"),
        ("a", SamplingParams(), {"deadline_s": 0}, "deadline_s"),
    ],
)
def test_b10_what_is_wrong_is_named_before_it_reaches_a_machine(
    tmp_path: Path, prompt: Prompt, sampling: SamplingParams, fields: dict[str, object], param: str
) -> None:
    async def body() -> None:
        text = ModelText(write_tiny_folder(tmp_path / "model"))
        ingress = IngressAdapter(IngressPlace("run-1", str(tmp_path), Epoch(50), 2, BLOCK, requests_max=16))
        with pytest.raises(BadRequest) as caught:
            await tokens_of(Pool(ingress, text).generate(ask(prompt, sampling, **fields)))
        assert caught.value.param == param
        await ingress.close()
        text.close()

    asyncio.run(body())


def test_b80_a_chat_without_a_template_is_refused(tmp_path: Path) -> None:
    async def body() -> None:
        text = ModelText(write_tiny_folder(tmp_path / "model", template=None))
        ingress = IngressAdapter(IngressPlace("run-1", str(tmp_path), Epoch(50), 2, BLOCK, requests_max=16))
        chat = Chat(({"role": "user", "content": "hello"},))
        with pytest.raises(BadRequest) as caught:
            await tokens_of(Pool(ingress, text).generate(ask(chat, SamplingParams())))
        assert caught.value.code == "no_chat_template"
        await ingress.close()
        text.close()

    asyncio.run(body())


def test_a_deadline_ends_a_request_wherever_it_is(tmp_path: Path) -> None:
    async def body() -> None:
        async with place(tmp_path) as here:
            with pytest.raises(DeadlinePassed):
                await tokens_of(here.pool.generate(ask(PROMPT, LONG, deadline_s=1e-6)))
            for life in here.workers.values():
                await life.end()
            with pytest.raises(DeadlinePassed):
                await tokens_of(here.pool.generate(ask(PROMPT, LONG, deadline_s=0.05)))

    run_where_servers_end(body())


def test_a_deadline_holds_while_a_new_ingress_looks_for_replicas(tmp_path: Path) -> None:
    async def body() -> None:
        text = ModelText(write_tiny_folder(tmp_path / "model"))
        ingress = IngressAdapter(IngressPlace("run-1", str(tmp_path), Epoch(50), 2, BLOCK, requests_max=16))
        ingress.dial()
        for deadline_s in (1e-6, 0.05):
            with pytest.raises(DeadlinePassed):
                await tokens_of(Pool(ingress, text).generate(ask(PROMPT, LONG, deadline_s=deadline_s)))
        await ingress.close()
        text.close()

    asyncio.run(body())


def test_tenants_and_salts_share_no_blocks(tmp_path: Path) -> None:
    async def body() -> None:
        async with place(tmp_path) as here:
            # Far more to compute than the difference between two replicas' measured steps.
            dear = tuple(range(50)) * 16 + (1,)
            cached = []
            for fields in ({}, {}, {"tenant": "other"}, {"cache_salt": "salt"}, {"cache_salt": "salt"}):
                request = ask(dear, attrs.evolve(LONG, max_tokens=4), **fields)
                cached.append([chunk.cached_tokens async for chunk in here.pool.generate(request)][-1])
                await here.settled()
            assert cached == [0, 800, 0, 0, 800]

    asyncio.run(body())


def test_closing_the_ingress_ends_what_runs(tmp_path: Path) -> None:
    async def body() -> None:
        async with place(tmp_path) as here:
            chunks = here.pool.generate(ask(PROMPT, LONG))
            await anext(chunks)
            await here.ingress.close()
            with pytest.raises(Draining):
                await tokens_of(chunks)
            with pytest.raises(LMPoolError):
                await tokens_of(here.pool.generate(ask(PROMPT, LONG)))

    asyncio.run(body())


def test_a_replica_of_another_model_is_left_out(tmp_path: Path) -> None:
    """Whatever it says of itself: the others' limit and namespace hold, and nothing is sent there."""

    async def body() -> None:
        async with place(tmp_path) as here:
            base, limit = here.ingress.namespace_base, here.ingress.tokens_max
            heard: asyncio.Queue[LinkEvent] = asyncio.Queue()
            stranger = Peer(Role.WORKER, Rank(2), Epoch(70))
            links = Links(Identity("run-1", stranger, os.getuid()), LINK_BOUNDS, heard.put_nowait)
            await links.listen(worker_address(str(tmp_path), Rank(2)), (Role.INGRESS,))
            ingress = IngressAdapter(IngressPlace("run-1", str(tmp_path), Epoch(51), 3, BLOCK, requests_max=16))
            ingress.dial()
            await ingress.any_joined(WAIT_S)
            joined = await asyncio.wait_for(heard.get(), WAIT_S)
            assert isinstance(joined, PeerJoined)
            facts = next(record for record in EXAMPLES if isinstance(record, WorkerJoined))
            for _ in range(2):
                links.send(joined.peer, attrs.evolve(facts, model_tokens_max=3))
            text = ModelText(tmp_path / "model")
            pool = Pool(ingress, text)
            for _ in range(3):
                await tokens_of(pool.generate(ask(PROMPT, attrs.evolve(LONG, max_tokens=4))))
            assert (ingress.namespace_base, ingress.tokens_max) == (base, limit)
            assert heard.empty()
            await ingress.close()
            text.close()
            await links.close()

    run_where_servers_end(body())
