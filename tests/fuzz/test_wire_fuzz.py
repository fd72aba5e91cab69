"""A short hunt on every socket of a run; `tools/fuzz --wire` is the long one."""

import asyncio
from pathlib import Path

import pytest

from tests.fuzz.rig import rig
from tests.fuzz.wire import Figures, fuzz, short_folder
from tests.model_folder import write_tiny_folder

INPUTS = 4000
GROWTH_MAX = 64 << 20
"""Far below what any input could make a process keep, if it kept them."""


@pytest.mark.parametrize("seed", [1])
def test_hostile_frames_harm_no_process_and_no_stream(tmp_path: Path, seed: int) -> None:
    async def body() -> None:
        async with rig(short_folder(tmp_path), write_tiny_folder(tmp_path / "model"), None) as made:
            figures = Figures()
            await fuzz(made, seed, INPUTS, figures)
            assert figures.streams >= 3
            assert sum(figures.inputs.values()) >= INPUTS
            assert min(figures.inputs.values()) >= INPUTS // 4
            for name, before in figures.memory_before.items():
                assert figures.memory_after[name] - before < GROWTH_MAX, name
            ends = [line for line in made.lines if "link ended" in line or "peer refused" in line]
            assert 0 < len(ends) <= figures.links

    asyncio.run(body())
