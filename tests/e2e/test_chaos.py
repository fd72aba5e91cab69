"""Half a minute of what `tools/chaos` does for as long as one likes, and whether it would notice a crash."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lmpool.bench.chaos.server import ChaosServer
from tests.e2e.server import ROOT, moments

CHAOS = (sys.executable, "-m", "lmpool.bench.chaos")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_b59_b60_half_a_minute_of_chaos_costs_no_answer_and_leaves_nothing() -> None:
    command = [*CHAOS, "--minutes", "0.5", "--clients", "10", "--seed", "4", "--json", "-"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told = json.loads(ran.stdout)
    assert told["accepted"] == told["completed"] > 100
    assert told["wrong"] == told["lost"] == 0
    assert told["cancelled"] > 0
    assert told["kills"]["worker"] >= 3
    assert told["strikes"]["kill all workers"] == 1
    assert {told[name] for name in told if name.startswith("leaked_")} == {0}
    assert told["crashes"] == []


def test_a_process_that_ends_of_its_own_accord_is_told_from_one_that_was_struck(
    integer_folder: Path, tmp_path: Path
) -> None:
    async def run() -> list[tuple[str, bool]]:
        server = ChaosServer(tmp_path, [str(integer_folder), "--replicas", "2"])
        try:
            await server.start()
            watching = asyncio.create_task(server.watch())
            os.kill(server.lives()["worker-1"], signal.SIGKILL)
            assert server.kill("worker-0")
            for _ in moments(10):
                await asyncio.sleep(0.05)
                if len(server.deaths) == 2:
                    break
            watching.cancel()
            return sorted((death.name, death.is_expected) for death in server.deaths)
        finally:
            server.close()

    assert asyncio.run(run()) == [("worker-0", True), ("worker-1", False)]
