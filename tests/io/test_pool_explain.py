"""What the pool tells of requests: real control and workers, and what became of each attempt."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import attrs

from lmpool.core.effects import Outcome
from tests.io.loops import Run, on_both_loops
from tests.io.test_pool import LONG, PROMPT, ask, place, run_where_servers_end, tokens_of

SHORT = attrs.evolve(LONG, max_tokens=4)


def test_each_life_of_a_stream_has_its_decision_and_its_visit(tmp_path: Path) -> None:
    async def body() -> None:
        async with place(tmp_path) as here:
            async with aclosing(here.pool.generate(ask(PROMPT, LONG, label="mine"))) as chunks:
                first = await anext(chunks)
                rank = await here.rank_of(first)
                await here.workers[rank].end()
                await here.replace_worker(rank)
                async for _ in chunks:
                    pass
            told = await here.pool.explain("mine", None, 10)
            (history,) = told.histories
            assert history.request == first.request
            assert [visit.end for visit in history.visits] == ["worker lost", "complete"]
            assert history.outcome is Outcome.COMPLETE
            assert history.output_tokens == 400
            made = {decision.attempt: decision.rank for decision in told.decisions}
            assert [made[visit.attempt] for visit in history.visits] == [visit.rank for visit in history.visits]
            assert all(visit.first_token_ns is not None for visit in history.visits)

    run_where_servers_end(body())


@on_both_loops
def test_a_tenant_is_told_of_its_own_requests_only(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with place(tmp_path) as here:
            for tenant in ("red", "blue", "red"):
                await tokens_of(here.pool.generate(ask(PROMPT, SHORT, tenant=tenant, label="same")))
            for word in (None, "same"):
                red, blue, everybody = [await here.pool.explain(word, tenant, 10) for tenant in ("red", "blue", None)]
                assert (len(red.decisions), len(blue.decisions), len(everybody.decisions)) == (2, 1, 3)
                assert {history.tenant for history in red.histories} == {"red"}
                assert {history.tenant for history in blue.histories} == {"blue"}
                assert len(everybody.histories) == 3
            assert len((await here.pool.explain(None, "red", 1)).decisions) == 1
            for word in ("1-99999999999999999999", "18446744073709551616-1", "7-7"):
                nobody = await here.pool.explain(word, None, 10)
                assert (nobody.decisions, nobody.histories) == ((), ()), word
            nobody = await here.pool.explain(None, "green", 10)
            assert (nobody.decisions, nobody.histories) == ((), ())

    run(body())


def test_a_route_without_control_is_told_once_control_is_back(tmp_path: Path) -> None:
    async def body() -> None:
        async with place(tmp_path) as here:
            await here.control.end()
            await tokens_of(here.pool.generate(ask(PROMPT, SHORT, answer_id="cmpl-1")))
            here.control = here.cluster.start_control(70)
            await asyncio.wait_for(here.ingress.all_linked(), 30)
            told = await here.pool.explain("cmpl-1", None, 10)
            assert told.decisions == ()
            assert [visit.is_degraded for visit in told.histories[0].visits] == [True]

    run_where_servers_end(body())
