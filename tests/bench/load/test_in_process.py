"""The embedded engine as an endpoint, with integers for a model."""

import asyncio
from pathlib import Path

import pytest

from lmpool.bench.load.contents import RandomTokens
from lmpool.bench.load.in_process import EngineEndpoint
from lmpool.bench.load.measured import Measured
from lmpool.bench.load.player import Player
from lmpool.io.clock import monotonic_now
from lmpool.io.engine import AsyncEngine
from lmpool.sim.trace import Trace
from tests.model_folder import write_tiny_folder
from tests.sim.racks import asked, continued, trace


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


def test_what_an_engine_refuses_is_an_error_of_its_kind(model: Path, tmp_path: Path) -> None:
    (one,) = _play(model, tmp_path, trace(asked(0, (0, 5_000), output=1)))
    assert one.fault.startswith("engine ")
    assert one.sent_ns is not None
