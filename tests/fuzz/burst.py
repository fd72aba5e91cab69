"""Very many requests at the same moment: probes must be answered throughout, and every refusal must be in form."""

import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import httpx

from tests.fuzz.rig import PROMPT, Rig

ROOT = Path(__file__).parents[2]
SERIAL = 20
"""Requests one after the other, before and after."""


@attrs.define
class BurstFigures:
    answers: Counter[str]
    """By status and code."""
    probes: int
    probe_p50_ms: float
    probe_p99_ms: float
    probe_max_ms: float
    burst_s: float
    serial_before_s: float
    """For `SERIAL` requests."""
    serial_after_s: float


async def burst(rig: Rig, requests: int) -> BurstFigures:
    """Raises AssertionError for an answer that is not in form."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(limits=limits, timeout=120) as client, httpx.AsyncClient(timeout=120) as single:
        before = await _serial(rig, single)
        stop = asyncio.Event()
        probing = asyncio.create_task(_probe(rig, stop))
        began = time.monotonic()
        answers = await asyncio.gather(*(_ask(rig, client, number) for number in range(requests)))
        took = time.monotonic() - began
        stop.set()
        delays = sorted(await probing)
        after = await _serial(rig, single)
    rig.assert_alive()
    return BurstFigures(
        answers=Counter(answers),
        probes=len(delays),
        probe_p50_ms=round(1e3 * delays[len(delays) // 2], 1),
        probe_p99_ms=round(1e3 * delays[min(len(delays) - 1, int(0.99 * len(delays)))], 1),
        probe_max_ms=round(1e3 * delays[-1], 1),
        burst_s=round(took, 2),
        serial_before_s=round(before, 2),
        serial_after_s=round(after, 2),
    )


async def _ask(rig: Rig, client: httpx.AsyncClient, number: int) -> str:
    body = {"prompt": [*PROMPT, number % 256], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    answer = await client.post(rig.url + "/v1/completions", json=body)
    return answer_word(answer)


def answer_word(answer: httpx.Response) -> str:
    """Status and code. Raises AssertionError for an answer that is not in form."""
    content: Any = answer.json()
    if answer.status_code == 200:
        assert content["choices"][0]["finish_reason"] == "length", content
        return "200"
    error = content["error"]
    assert list(error) == ["message", "type", "param", "code"], content
    assert answer.status_code in (429, 503), content
    assert int(answer.headers["retry-after"]) >= 1
    return f"{answer.status_code} {error['code']}"


async def _probe(rig: Rig, stop: asyncio.Event) -> list[float]:
    """From a process of its own: this one has its hands full."""
    host, port = rig.url.removeprefix("http://").split(":")
    pipe = asyncio.subprocess.PIPE
    words = (sys.executable, "-m", "tests.fuzz.prober", host, port)
    prober = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, cwd=ROOT)
    await stop.wait()
    told, _ = await prober.communicate(b"end")
    delays: list[float] = json.loads(told)
    return delays


async def _serial(rig: Rig, client: httpx.AsyncClient) -> float:
    began = time.monotonic()
    for _ in range(SERIAL):
        assert (await rig.complete(client)).status_code == 200
    return time.monotonic() - began
