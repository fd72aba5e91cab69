"""More requests at a moment than the server takes; `tools/fuzz --burst` measures it."""

import asyncio
from pathlib import Path

import pytest

from tests.fuzz.burst import burst
from tests.fuzz.rig import rig
from tests.fuzz.wire import short_folder
from tests.model_folder import write_tiny_folder

PLACES = 1024
"""Of the rig's ingress."""
BEYOND = 100


@pytest.mark.slow
def test_b37_b64_in_a_burst_probes_are_answered_and_refusals_are_in_form(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig(short_folder(tmp_path), write_tiny_folder(tmp_path / "model"), None) as made:
            figures = await burst(made, PLACES + BEYOND)
            assert sum(figures.answers.values()) == PLACES + BEYOND
            assert set(figures.answers) <= {"200", "429 server_busy"}
            assert figures.answers["200"] > PLACES // 2
            assert figures.probes > 0

    asyncio.run(body())
