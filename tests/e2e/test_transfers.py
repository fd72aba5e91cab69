"""Transfers between real worker processes: what arrives is right, and nothing is left of what is struck down."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from lmpool.core.messages.transfer import TransferDenial, TransferMode
from tests.e2e.server import Server, moments, serving
from tests.e2e.transfer_chaos import struck
from tests.e2e.transfer_rig import TransferRig, is_at_rest, transfer_rig
from tests.io.cluster import BLOCK

BLOCKS = 20


def run(body: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(body)


def test_a_copied_prefix_is_cached_at_the_target_and_gives_the_same_tokens(tmp_path: Path) -> None:
    async def body() -> None:
        async with transfer_rig(tmp_path, copy_block_s=0) as rig:
            prompt = rig.prompt(1, BLOCKS)
            assert await rig.run(prompt, 0) == 0
            decided = await rig.order(prompt, 0, 1, TransferMode.COPY)
            assert decided.denial is None
            shown = await rig.over()
            assert (shown.outcome, shown.transfer, shown.blocks) == ("published", decided.transfer, BLOCKS)
            assert shown.copy_ns is not None
            assert shown.took_ns is not None
            assert 0 < shown.copy_ns < shown.took_ns
            assert await rig.run(prompt, 1) == BLOCKS * BLOCK
            assert await rig.run(prompt, 0) == BLOCKS * BLOCK
            transfers = (await rig.state()).transfers
            assert (transfers.blocks, transfers.size_bytes) == (BLOCKS, BLOCKS * BLOCK * 8)
            assert transfers.copy_ns > 0
            await rig.at_rest()

    run(body())


def test_a_move_frees_the_source_and_only_what_nobody_stands_on(tmp_path: Path) -> None:
    async def body() -> None:
        async with transfer_rig(tmp_path, copy_block_s=0) as rig:
            prompt = rig.prompt(1, BLOCKS)
            await rig.run(prompt, 0)
            await rig.until_state(lambda state: is_at_rest(state) and state.ranks[0].blocks_cached >= BLOCKS)
            before = (await rig.state()).ranks[0].blocks_cached
            await rig.order(prompt, 0, 1, TransferMode.MOVE)
            assert (await rig.over()).outcome == "published"
            await rig.until_state(lambda state: state.ranks[0].blocks_cached == before - BLOCKS)
            assert await rig.run(prompt, 1) == BLOCKS * BLOCK
            assert await rig.run(prompt, 0) == 0
            await rig.at_rest()

    run(body())


def test_refusals_and_denials_are_told_and_leave_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with transfer_rig(tmp_path) as rig:
            prompt = rig.prompt(1, BLOCKS)
            await rig.order(prompt, 0, 1, TransferMode.COPY)
            assert (await rig.over()).cause == "chain missing"
            await rig.run(prompt, 0)
            await rig.order(prompt, 0, 1, TransferMode.COPY)
            await rig.phase("copying")
            assert (await rig.order(prompt, 0, 1, TransferMode.COPY)).denial is TransferDenial.SOURCE_BUSY
            assert (await rig.over()).outcome == "published"
            await rig.order(prompt, 0, 1, TransferMode.COPY)
            assert (await rig.over()).cause == "already resident"
            transfers = (await rig.state()).transfers
            assert dict(transfers.refusals) == {"chain missing": 1, "source busy": 1, "already resident": 1}
            await rig.at_rest()

    run(body())


def test_a_copy_that_takes_too_long_ends_and_the_next_one_succeeds(tmp_path: Path) -> None:
    async def body() -> None:
        async with transfer_rig(tmp_path) as rig:
            prompt = rig.prompt(1, BLOCKS)
            await rig.run(prompt, 0)
            await rig.order(prompt, 0, 1, TransferMode.COPY, copy_s=0.1)
            assert (await rig.over()).outcome == "late"
            await rig.at_rest()
            await rig.order(prompt, 0, 1, TransferMode.COPY)
            assert (await rig.over()).outcome == "published"
            assert await rig.run(prompt, 1) == BLOCKS * BLOCK

    run(body())


TOLERANCE = 1e-3
OPERATOR = {"authorization": "Bearer sk-operator"}


def answered(server: Server, prompt: list[int]) -> tuple[int, int, list[float]]:
    """Where it ran, how many tokens were cached there, and the log-probabilities of the answer."""
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    answer = httpx.post(server.url + "/v1/completions", json=body, headers=OPERATOR, timeout=60)
    assert answer.status_code == 200, answer.text
    decision = httpx.get(server.url + "/pool/decisions", params={"limit": 1}, headers=OPERATOR).json()["decisions"][0]
    document = answer.json()
    logprobs = document["choices"][0]["logprobs"]["token_logprobs"]
    return decision["rank"], document["usage"]["prompt_tokens_details"]["cached_tokens"], logprobs


def last_transfer(server: Server) -> dict[str, Any]:
    """Once one is over."""
    for _ in moments(20):
        over: list[dict[str, Any]] = httpx.get(server.url + "/pool/state", headers=OPERATOR).json()["transfers"]["over"]
        if over:
            return over[-1]
    raise AssertionError(server.log())


@pytest.mark.parametrize(
    "folder", ["integer_folder", pytest.param("tiny_llama_folder", marks=pytest.mark.model)], ids=["integers", "llama"]
)
def test_an_operator_moves_a_prefix_of_a_running_server(
    request: pytest.FixtureRequest, tmp_path: Path, folder: str
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-operator ops admin\n")
    model = str(request.getfixturevalue(folder))
    prompt = [5 + place % 200 for place in range(100)]
    # requests follow the prefix; the default might find it as quick to compute it anew
    arguments = (
        "--replicas",
        "2",
        "--kv-blocks",
        "64",
        "--api-key-file",
        str(keys),
        "--policy",
        "longest-prefix",
        "--placement",
        "off",
        "--transfer-checksum",
        "on",
    )
    with serving(tmp_path, model, *arguments) as server:
        source, cached, computed = answered(server, prompt)
        assert cached == 0
        wish = {"prompt": prompt, "source": source, "target": 1 - source, "mode": "move"}
        ordered = httpx.post(server.url + "/pool/transfer", json=wish, headers=OPERATOR)
        assert ordered.status_code == 200, ordered.text
        over = last_transfer(server)
        assert (over["transfer"], over["outcome"]) == (ordered.json()["transfer"], "published"), server.log()
        target, cached, arrived = answered(server, prompt)
        assert (target, cached) == (1 - source, 96)
        assert max(abs(one - other) for one, other in zip(computed, arrived, strict=True)) <= TOLERANCE
        metrics = httpx.get(server.url + "/metrics").text.splitlines()
        assert 'lmpool_transfers_total{outcome="published"} 1.0' in metrics
        assert "lmpool_transfer_blocks_total 6.0" in metrics
        again = httpx.post(server.url + "/pool/transfer", json=wish | {"target": source}, headers=OPERATOR)
        assert (again.status_code, again.json()["error"]["code"]) == (409, "transfer_denied")


async def attach(rig: TransferRig, number: int) -> None:
    """The target has the source's memory, so that a source that is stopped can be read."""
    prompt = rig.prompt(number, 2)
    await rig.run(prompt, 0)
    await rig.order(prompt, 0, 1, TransferMode.COPY)
    assert (await rig.over()).outcome == "published"


async def hold(rig: TransferRig, phase: str) -> None:
    """The transfer stays in that phase: whoever has to answer is stopped."""
    await rig.phase("copying")
    if phase == "copying":
        return
    rig.stop("worker 0")
    await rig.phase("confirming")
    if phase == "confirming":
        return
    rig.stop("worker 1")
    rig.go_on("worker 0")
    await rig.phase("publishing")
    if phase == "publishing":
        return
    rig.stop("worker 0")
    rig.go_on("worker 1")
    await rig.phase("finalizing")


async def killed(rig: TransferRig, name: str) -> None:
    await rig.kill(name)
    for each in rig.children:
        if each != name:
            rig.go_on(each)
    await rig.start(name)


async def stopped(rig: TransferRig, name: str) -> None:
    """Longer than control waits for an answer, shorter than the sides live."""
    rig.stop(name)
    await asyncio.sleep(1.5)
    for each in rig.children:
        rig.go_on(each)


STRIKES: tuple[Callable[[TransferRig, str], Awaitable[None]], ...] = (killed, stopped)


@pytest.mark.parametrize("name", ["worker 0", "worker 1", "control"])
@pytest.mark.parametrize("phase", ["preparing", "copying", "confirming", "publishing", "finalizing"])
def test_whoever_is_killed_or_stopped_in_a_phase_leaves_nothing_behind(tmp_path: Path, phase: str, name: str) -> None:
    async def body() -> None:
        async with transfer_rig(tmp_path) as rig:
            for number, strike in enumerate(STRIKES):
                prompt = rig.prompt(number, BLOCKS)
                await rig.run(prompt, 0)
                if phase == "preparing":
                    rig.stop("worker 0")
                elif phase != "copying":
                    await attach(rig, 20 + number)
                await rig.order(prompt, 0, 1, TransferMode.MOVE)
                if phase == "preparing":
                    await rig.phase(phase)
                else:
                    await hold(rig, phase)
                await strike(rig, name)
                await rig.at_rest()
                for rank in (1, 0):
                    await rig.run(prompt, rank)
                    await rig.run(rig.prompt(10 + number, 7), rank)
                await rig.at_rest()
                await rig.none_of_the_dead()

    run(body())


def test_transfers_struck_at_random_points_leave_nothing_behind(tmp_path: Path) -> None:
    async def body() -> None:
        found = await struck(tmp_path, points=10, seed=3, tell=lambda _: None)
        assert len(found) == 10

    run(body())
