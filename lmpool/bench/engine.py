"""`lmpool bench engine`: output tokens per second of one replica, beside transformers' own ways to batch.

All arms run the same random prompts, greedily and to a fixed length, alternating in one run; each starts without
cached prefixes. `lmpool` is the embedded engine, `lmpool http` streams from a server of its own, `continuous` is
transformers' generate_batch and `static` its generate on one padded batch.

  lmpool bench engine --profile quick        a first look, with the bundled model
  lmpool bench engine MODEL --rounds 5       with another
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from statistics import median
from typing import TypeAlias

import attrs
from tqdm import tqdm

from lmpool.bench.flags import Parser, count, output, profiled
from lmpool.bench.floor import Floor, measure_floor
from lmpool.bench.peer import Peer
from lmpool.bench.server import BenchServer
from lmpool.bench.table import table_lines
from lmpool.bench.workloads import Batch, shared_batch
from lmpool.core.plan import ReplicaError
from lmpool.gpu.source import prepare
from lmpool.io.clock import monotonic_now
from lmpool.io.engine import AsyncEngine
from lmpool.io.errors import LMPoolError
from lmpool.io.generation import SamplingParams
from lmpool.io.supervision.machine import usual_cache_folder

Arm: TypeAlias = Callable[[Batch, str], Awaitable[int]]
"""Runs a batch under a cache salt of its own; returns output tokens."""

VOCABULARY = 32_000
QUICK = {"rounds": 1, "requests": 4, "output_tokens": 16}
WAIT_MAX_S = 3600
"""All requests of a batch are to be answered, however slow the machine is."""
COLUMNS = ("workload", "arm", "tokens/s", "least", "most", "seconds", "of continuous", "of floor")


@attrs.frozen
class Figures:
    workload: str
    arm: str
    output_tokens: int
    seconds: tuple[float, ...]
    """One a round."""
    floor_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / median(self.seconds)


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 if the model cannot be had."""
    given = profiled(_parser(), QUICK, arguments)
    try:
        folder = prepare(given.model, usual_cache_folder(os.environ), lambda line: print(line, file=sys.stderr))
        figures = asyncio.run(_measure(given, str(folder)))
    except (ReplicaError, LMPoolError) as error:
        print(f"lmpool bench engine: {error}", file=sys.stderr)
        return 1
    if given.json:
        given.json.write_text(json.dumps([attrs.asdict(row) for row in figures], indent=1))
    print("\n".join(table_lines(COLUMNS, [_row(row, figures) for row in figures])))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "lmpool bench engine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="as of lmpool serve (default: the bundled one)")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="(default %(default)s)")
    parser.add_argument("--threads", type=count, default=2, metavar="N", help="of each arm (default %(default)s)")
    parser.add_argument("--rounds", type=count, default=3, metavar="N", help="that are counted (default %(default)s)")
    parser.add_argument("--requests", type=count, default=16, metavar="N", help="of a batch (default %(default)s)")
    parser.add_argument("--output-tokens", type=count, default=32, metavar="N", help="of each (default %(default)s)")
    parser.add_argument("--json", type=output, metavar="FILE", help="write the figures there as well")
    return parser


async def _measure(given: argparse.Namespace, folder: str) -> list[Figures]:
    """Raises LMPoolError."""

    def batch(shared: int, own: int, seed: int) -> Batch:
        return shared_batch(given.requests, shared, own, given.output_tokens, VOCABULARY, seed)

    workloads = {"shared 512 + 32": (512, 32), "own 544": (0, 544)}
    floor = await asyncio.to_thread(measure_floor, folder, given.dtype, given.threads)
    async with AsyncExitStack() as stack:
        arms = await _arms(given, folder, stack)
        seconds: dict[tuple[str, str], list[float]] = {(load, arm): [] for load in workloads for arm in arms}
        rounds = range(given.rounds + 1)  # the first warms up and is not counted
        bar = stack.enter_context(tqdm(total=len(rounds) * len(seconds), desc="batches", unit="batch"))
        for round_number in rounds:
            for load, (shared, own) in workloads.items():
                prompts = batch(shared, own, round_number)
                for name, arm in arms.items():
                    bar.set_postfix_str(f"{load}, {name}")
                    took = await _timed(arm, prompts, f"{load} {round_number}")
                    bar.update()
                    if round_number:
                        seconds[load, name].append(took)
    tokens = given.requests * given.output_tokens
    return [
        Figures(load, arm, tokens, tuple(took), _floor_s(floor, batch(*workloads[load], 0), workloads[load][0]))
        for (load, arm), took in seconds.items()
    ]


async def _timed(arm: Arm, batch: Batch, salt: str) -> float:
    began = monotonic_now()
    tokens = await arm(batch, salt)
    took = (monotonic_now() - began) / 1e9
    if tokens != len(batch.prompts) * batch.output_tokens:
        raise RuntimeError(f"{tokens} output tokens instead of {len(batch.prompts) * batch.output_tokens}")
    return took


async def _arms(given: argparse.Namespace, folder: str, stack: AsyncExitStack) -> dict[str, Arm]:
    flags = [folder, "--dtype", given.dtype, "--replicas", "1", "--threads", str(given.threads)]
    flags += ["--wait-max-seconds", str(WAIT_MAX_S)]
    engine = await stack.enter_async_context(
        AsyncEngine(folder, 1, dtype=given.dtype, threads=given.threads, wait_max_seconds=WAIT_MAX_S)
    )
    server = await stack.enter_async_context(BenchServer(flags))
    peer = await Peer.start(folder, given.dtype, given.threads)
    stack.push_async_callback(peer.close)

    async def embedded(batch: Batch, salt: str) -> int:
        return sum(await asyncio.gather(*(_generate(engine, prompt, batch, salt) for prompt in batch.prompts)))

    async def continuous(batch: Batch, salt: str) -> int:
        return int((await peer.run("continuous", batch))["output_tokens"])

    async def static(batch: Batch, salt: str) -> int:
        return int((await peer.run("static", batch))["output_tokens"])

    return {"lmpool": embedded, "lmpool http": server.run, "continuous": continuous, "static": static}


async def _generate(engine: AsyncEngine, prompt: tuple[int, ...], batch: Batch, salt: str) -> int:
    sampling = SamplingParams(temperature=0.0, max_tokens=batch.output_tokens, ignores_eos=True)
    tokens = 0
    async for chunk in engine.generate(prompt, sampling, cache_salt=salt):
        tokens += len(chunk.tokens)
    return tokens


def _floor_s(floor: Floor, batch: Batch, shared: int) -> float:
    """Prefill of what must be computed once at the matrix rate, then decode steps at the memory bandwidth."""
    own = sum(len(prompt) - shared for prompt in batch.prompts)
    context = sum(len(prompt) for prompt in batch.prompts) + len(batch.prompts) * batch.output_tokens / 2
    prefill = (shared + own) * floor.flops_per_token / floor.flops_per_s
    step = (floor.weight_bytes + context * floor.kv_bytes_per_token) / floor.bytes_per_s
    return prefill + (batch.output_tokens - 1) * step


def _row(row: Figures, rows: Sequence[Figures]) -> list[str]:
    peer = next(other for other in rows if (other.workload, other.arm) == (row.workload, "continuous"))
    return [
        row.workload,
        row.arm,
        f"{row.tokens_per_s:.1f}",
        f"{row.output_tokens / max(row.seconds):.1f}",
        f"{row.output_tokens / min(row.seconds):.1f}",
        f"{median(row.seconds):.2f}",
        f"{row.tokens_per_s / peer.tokens_per_s:.2f}",
        f"{row.floor_s / median(row.seconds):.0%}",
    ]
