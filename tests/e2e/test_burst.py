"""Siblings that arrive together: their common prefix is computed once on each replica that is used."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.server import Server, moments, serving

SIBLINGS = 16
BLOCK = 16
COMMON = tuple(range(2, 122)) * 2
OWN_TOKENS = 5


@pytest.mark.parametrize("salt", ["first burst", "second burst"])
def test_a_burst_computes_its_cold_prefix_once_per_replica_used(slow_folder: Path, tmp_path: Path, salt: str) -> None:
    """Computed tokens by the replicas' own counters, not hits."""
    with serving(tmp_path, str(slow_folder), "--replicas", "2") as server, ThreadPoolExecutor(SIBLINGS) as threads:
        prompts = [[*COMMON, *(3 + number for _ in range(OWN_TOKENS))] for number in range(SIBLINGS)]
        bodies = [
            {"prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True, "cache_salt": salt}
            for prompt in prompts
        ]
        answers = list(
            threads.map(lambda body: httpx.post(server.url + "/v1/completions", json=body, timeout=60), bodies)
        )
        assert [answer.status_code for answer in answers] == [200] * SIBLINGS
        replicas = _counted(server, SIBLINGS * len(prompts[0]))
        used = [replica for replica in replicas if replica["routed"]]
        shared = len(COMMON) // BLOCK * BLOCK
        tails = SIBLINGS * (len(prompts[0]) - shared)
        assert sum(replica["tokens_computed"] for replica in used) == len(used) * shared + tails


def _counted(server: Server, prompt_tokens: int) -> list[dict[str, int]]:
    """The replicas, once their reports cover all prompts."""
    for _ in moments(5):
        replicas: list[dict[str, int]] = httpx.get(server.url + "/pool/state").json()["replicas"]
        if sum(replica["tokens_computed"] + replica["tokens_cached"] for replica in replicas) == prompt_tokens:
            return replicas
    raise AssertionError(f"reports never covered {prompt_tokens} prompt tokens")
