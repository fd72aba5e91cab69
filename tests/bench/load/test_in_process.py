"""The embedded engine as an endpoint, with integers for a model."""

import asyncio
from pathlib import Path

import attrs
import pytest

from lmpool.bench.load.contents import RandomTokens
from lmpool.bench.load.in_process import EngineEndpoint
from lmpool.bench.load.measured import Measured
from lmpool.bench.load.player import Player
from lmpool.io.clock import monotonic_now
from lmpool.io.engine import AsyncEngine
from lmpool.sim.replay import Replay, make_prompts
from lmpool.sim.trace import Trace, prompt_lengths
from tests.model_folder import write_tiny_folder
from tests.sim.racks import RACK, asked, continued, trace


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("model"))


def _play(model: Path, runs: Path, made: Trace) -> list[Measured]:
    async def body() -> list[Measured]:
        async with AsyncEngine(model, 1, say=lambda _: None, run_folder=runs) as engine:
            endpoint = EngineEndpoint(engine, RandomTokens(300, 1), monotonic_now)
            player = Player(made, endpoint, monotonic_now, lambda _: None, is_forced=True)
            return await player.run(monotonic_now())

    return asyncio.run(body())


def test_an_engine_tells_tokens_and_finds_what_a_session_said_before(model: Path, tmp_path: Path) -> None:
    made = trace(asked(0, (0, 40), output=9), continued(0, 0.0, (1, 30), output=5))
    first, second = _play(model, tmp_path, made)
    assert [first.fault, second.fault] == ["", ""]
    assert (first.prompt_tokens, first.cached_tokens, first.output_tokens) == (40, 0, 9)
    assert (second.prompt_tokens, second.cached_tokens, second.output_tokens) == (40 + 9 + 30, 48, 5)
    assert sum(piece.tokens or 0 for piece in first.pieces) == 9


def test_one_trace_finds_the_same_in_an_engine_and_in_the_simulator(model: Path, tmp_path: Path) -> None:
    requests = [
        asked(0, (0, 70), (1, 9), output=5),
        asked(0, (0, 70), (2, 40), output=3),
        asked(0, (3, 20), output=20),
        asked(0, (0, 40), (4, 30), output=2),
        continued(2, 0.01, (5, 30), output=4),
        continued(4, 0.01, (6, 1), output=2),
    ]
    made = attrs.evolve(trace(*requests), in_flight_max=1)
    live = _play(model, tmp_path, made)
    replay = Replay(made, make_prompts(made, 16), attrs.evolve(RACK, replicas=1), "round-robin", 0)
    while replay.advance(10):
        pass
    assert [one.fault for one in live] == [""] * 6
    assert [one.prompt_tokens for one in live] == prompt_lengths(made)
    assert [one.cached_tokens for one in live] == [times.cached_tokens for times in replay.front.times]
    assert [one.cached_tokens for one in live][:4] == [0, 64, 0, 32]


def test_what_an_engine_refuses_is_an_error_of_its_kind(model: Path, tmp_path: Path) -> None:
    (one,) = _play(model, tmp_path, trace(asked(0, (0, 5_000), output=1)))
    assert one.fault.startswith("engine ")
    assert one.sent_ns is not None
