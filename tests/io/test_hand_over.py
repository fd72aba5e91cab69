"""A request whose replica dies, drains or is replaced goes on elsewhere, and its client can tell no difference."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import count
from pathlib import Path

import attrs
import pytest

from lmpool.core.sampling import StopSettings
from lmpool.io.generation import Chunk, GenerationRequest, SamplingParams, ScoredToken
from lmpool.io.request_check import sampling_settings
from lmpool.sim.integer_model import reference_tokens
from tests.io.test_pool import (
    LONG,
    PROMPT,
    VOCABULARY,
    Place,
    ask,
    expected,
    place,
    run_where_servers_end,
    tokens_of,
)

EVERYTHING = SamplingParams(
    choices=2,
    max_tokens=120,
    temperature=0.8,
    top_p=0.95,
    min_p=0.001,
    presence_penalty=0.4,
    frequency_penalty=0.2,
    repetition_penalty=1.1,
    logit_bias=((7, 3.0), (9, -100.0)),
    seed=5,
    min_tokens=90,
    logprobs=2,
)


@attrs.define
class Told:
    """All that a client learns of one choice."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[ScoredToken, ...] = ()
    finish: str | None = None
    usage: tuple[int, int] = (0, 0)

    def take(self, chunk: Chunk) -> None:
        assert self.finish is None
        self.text += chunk.text
        self.tokens += chunk.tokens
        self.logprobs += chunk.logprobs
        self.finish = chunk.finish
        self.usage = (chunk.prompt_tokens, chunk.completion_tokens)


async def told(
    here: Place, chunks: AsyncGenerator[Chunk, None], losses_at: tuple[int, ...], *, drains: bool
) -> dict[int, Told]:
    """By choice; whenever so many tokens have come, the replica is killed or drained, and a new one started."""
    choices: dict[int, Told] = {}
    left = list(losses_at)
    async with aclosing(chunks):
        async for chunk in chunks:
            choices.setdefault(chunk.choice, Told()).take(chunk)
            if left and sum(len(choice.tokens) for choice in choices.values()) >= left[0]:
                del left[0]
                await replace(here, await here.rank_of(chunk), drains=drains)
    assert left == []
    return choices


async def replace(here: Place, rank: int, *, drains: bool) -> None:
    """`drains`: in order, with requests that do not end in time."""
    life = here.workers[rank]
    if drains:
        life.drain(0)
        await life.ended
    await life.end()
    await here.replace_worker(rank)


@pytest.mark.parametrize("drains", [False, True])
@pytest.mark.parametrize(
    "sampling",
    [EVERYTHING, attrs.evolve(EVERYTHING, echo=True), attrs.evolve(EVERYTHING, temperature=0.0, logprobs=0)],
    ids=["drawn", "echoed", "greedy"],
)
def test_penalties_seeds_limits_log_probabilities_and_usage_go_on_as_if_nothing_had_happened(
    tmp_path: Path, sampling: SamplingParams, drains: bool
) -> None:
    async def body() -> None:
        async with place(tmp_path) as here:
            request = ask(PROMPT, sampling)
            undisturbed = await told(here, here.pool.generate(request), (), drains=False)
            assert len(undisturbed) == 2
            assert undisturbed[0].usage[0] == len(PROMPT)
            assert undisturbed[0].usage[1] == len(undisturbed[0].tokens) >= 90
            assert len(undisturbed[0].logprobs) == len(undisturbed[0].tokens) + sampling.echo * len(PROMPT)
            assert await told(here, here.pool.generate(request), (20, 110), drains=drains) == undisturbed
            assert here.ingress.snapshot().resumed == 2

    run_where_servers_end(body())


def test_a_stop_string_that_begins_before_the_loss_and_ends_after_it_is_found(tmp_path: Path) -> None:
    async def body() -> None:
        async with place(tmp_path) as here:
            free = attrs.evolve(LONG, max_tokens=60)
            pieces = [chunk.text async for chunk in here.pool.generate(ask(PROMPT, free))]
            text = "".join(pieces)
            sampling = attrs.evolve(free, stop=(text[30:45],))
            undisturbed = await told(here, here.pool.generate(ask(PROMPT, sampling)), (), drains=False)
            assert undisturbed[0].finish == "stop"
            for tokens in range(1, len(undisturbed[0].tokens), 5):
                chunks = here.pool.generate(ask(PROMPT, sampling))
                assert await told(here, chunks, (tokens,), drains=False) == undisturbed

    run_where_servers_end(body())


def test_b40_the_loss_of_the_replica_that_holds_what_everybody_asks_costs_nobody_an_answer(tmp_path: Path) -> None:
    async def body() -> None:
        async with place(tmp_path) as here:
            async with aclosing(here.pool.generate(ask(PROMPT, LONG))) as chunks:
                rank = await here.rank_of(await anext(chunks))
            requests = [ask(PROMPT, attrs.evolve(LONG, max_tokens=60, seed=seed)) for seed in range(8)]
            asking = [asyncio.create_task(tokens_of(here.pool.generate(request))) for request in requests]
            await asyncio.sleep(0.02)
            await here.workers[rank].end()
            later = [asyncio.create_task(tokens_of(here.pool.generate(request))) for request in requests]
            answers = await asyncio.gather(*asking, *later)
            assert answers == [{0: expected(request.sampling, 0)} for request in requests] * 2
            state = await here.pool.pool_state()
            assert [rank_state.booked for rank_state in state.ranks if rank_state.rank == rank] == [0]

    run_where_servers_end(body())


def reference(request: GenerationRequest) -> tuple[int, ...]:
    sampling = request.sampling
    assert isinstance(request.prompt, tuple)
    assert sampling.seed is not None
    assert sampling.max_tokens is not None
    stop = StopSettings(sampling.max_tokens, 0, (), ())
    return reference_tokens(VOCABULARY, request.prompt, sampling_settings(sampling, sampling.seed), stop, 0)


@pytest.mark.parametrize("drains", [False, True])
def test_b48_while_replicas_are_replaced_in_turn_every_request_gets_its_whole_answer(
    tmp_path: Path, drains: bool
) -> None:
    async def body() -> None:
        async with place(tmp_path) as here:
            done = asyncio.Event()
            ends: asyncio.Queue[int] = asyncio.Queue()
            numbers = count(1)

            async def client(prompt_tokens: int) -> None:
                while not done.is_set():
                    number = next(numbers)
                    sampling = attrs.evolve(LONG, max_tokens=30, seed=number)
                    request = ask((*PROMPT[:prompt_tokens], number % 50), sampling)
                    assert await tokens_of(here.pool.generate(request)) == {0: reference(request)}
                    ends.put_nowait(number)

            async with asyncio.TaskGroup() as group:
                for client_number in range(4):
                    group.create_task(client(10 + client_number))
                for turn in range(6):
                    for _ in range(4):
                        await ends.get()
                    await replace(here, turn % 2, drains=drains)
                done.set()
            await here.settled()

    run_where_servers_end(body())
