"""`lmpool bench locality`: how much prefill routing saves on live replicas, policy against policy.

Agent sessions (closed loop) run against fresh replicas for each policy, KV budget and seed. A budget of 0.55 means
that each replica can hold 0.55 of the blocks of all sessions at their last turn.
"""

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, quantiles

import attrs

from lmpool.bench.sessions import run_sessions
from lmpool.bench.table import table_lines
from lmpool.bench.workloads import AgentSessions, agent_sessions
from lmpool.core.route import POLICIES
from lmpool.io.engine import AsyncEngine
from lmpool.io.settings.tree import PoolSettings

BASELINE = "round-robin"
COLUMNS = (
    "policy",
    "budget",
    "seed",
    "blocks",
    "floor",
    "computed",
    "cached",
    "ratio",
    "ttft",
    "ttft p99",
    "resumed",
    "e2e",
    "s",
)
REPORT_WAIT_S = 1.0
"""Reports come at least twice a second; after this the counters are complete."""


@attrs.frozen
class Run:
    """One policy on one budget and seed. Tokens are prompt tokens by the replicas' counters; times are seconds."""

    policy: str
    budget: float
    seed: int
    workload: str
    """Fingerprint."""
    kv_blocks: int
    floor_tokens: int
    """Of the workload: what no policy can avoid to compute."""
    computed_tokens: int
    cached_tokens: int
    ttft_mean_s: float
    ttft_p99_s: float
    resumed_ttft_mean_s: float
    """Of turns after the first of their session."""
    e2e_mean_s: float
    seconds: float
    routed: tuple[int, ...]
    """Requests per rank."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("lmpool bench locality", description=__doc__, allow_abbrev=False)
    parser.add_argument("model", nargs="?", help="as for `lmpool serve`")
    parser.add_argument("--policy", nargs="+", choices=tuple(POLICIES), default=[BASELINE, "default"])
    parser.add_argument("--replicas", type=int, default=2, metavar="N")
    parser.add_argument("--budget", nargs="+", type=float, default=[0.55], metavar="X")
    parser.add_argument("--seed", nargs="+", type=int, default=[1, 2, 3], metavar="S")
    parser.add_argument("--sessions", type=int, default=16, metavar="N")
    parser.add_argument("--turns", type=int, default=12, metavar="N")
    parser.add_argument("--vocabulary", type=int, default=32_000, metavar="N", help="prompts have ids below this")
    parser.add_argument(
        "--scale", type=float, default=1.0, metavar="X", help="of all token counts (default %(default)s)"
    )
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    runs = asyncio.run(_measure(parser.parse_args(arguments)))
    print("\n".join(table_lines(COLUMNS, [_row(run, runs) for run in runs])))
    return 0


async def _measure(given: argparse.Namespace) -> list[Run]:
    runs: list[Run] = []
    cells = [(budget, seed, policy) for budget in given.budget for seed in given.seed for policy in given.policy]
    for number, (budget, seed, policy) in enumerate(cells, start=1):
        print(f"run {number} of {len(cells)}: {policy}, budget {budget:g}, seed {seed}", file=sys.stderr, flush=True)
        runs.append(await _run(given, policy, budget, seed))
        if given.json:
            given.json.write_text(json.dumps([attrs.asdict(run) for run in runs], indent=1))
    return runs


async def _run(given: argparse.Namespace, policy: str, budget: float, seed: int) -> Run:
    workload = agent_sessions(given.sessions, given.turns, given.scale, given.vocabulary, seed)
    kv_blocks = math.ceil(budget * workload.blocks_at_end(PoolSettings().block_size))
    engine = AsyncEngine(given.model, given.replicas, dtype=given.dtype, kv_blocks=kv_blocks, policy=policy)
    async with engine:
        return await _drive(engine, workload, policy, budget, seed, kv_blocks)


async def _drive(
    engine: AsyncEngine, workload: AgentSessions, policy: str, budget: float, seed: int, kv_blocks: int
) -> Run:
    before = await engine.pool_state()
    result = await run_sessions(engine, workload)
    await asyncio.sleep(REPORT_WAIT_S)
    after = await engine.pool_state()
    pairs = list(zip(before.ranks, after.ranks, strict=True))
    ttfts = [turn.ttft_s for turn in result.turns]
    return Run(
        policy=policy,
        budget=budget,
        seed=seed,
        workload=workload.fingerprint,
        kv_blocks=kv_blocks,
        floor_tokens=workload.prefill_floor(PoolSettings().block_size),
        computed_tokens=sum(new.tokens_computed - old.tokens_computed for old, new in pairs),
        cached_tokens=sum(new.tokens_cached - old.tokens_cached for old, new in pairs),
        ttft_mean_s=fmean(ttfts),
        ttft_p99_s=quantiles(ttfts, n=100)[98],
        resumed_ttft_mean_s=fmean([turn.ttft_s for turn in result.turns if turn.turn]),
        e2e_mean_s=fmean([turn.e2e_s for turn in result.turns]),
        seconds=result.seconds,
        routed=tuple(new.routed - old.routed for old, new in pairs),
    )


def _row(run: Run, runs: Sequence[Run]) -> list[str]:
    """`ratio` is computed prefill over that of the baseline with the same budget and seed."""
    baseline = [
        other.computed_tokens
        for other in runs
        if (other.policy, other.budget, other.seed) == (BASELINE, run.budget, run.seed)
    ]
    return [
        run.policy,
        f"{run.budget:g}",
        str(run.seed),
        str(run.kv_blocks),
        str(run.floor_tokens),
        str(run.computed_tokens),
        str(run.cached_tokens),
        f"{run.computed_tokens / baseline[0]:.3f}" if baseline else "",
        f"{run.ttft_mean_s:.3f}",
        f"{run.ttft_p99_s:.3f}",
        f"{run.resumed_ttft_mean_s:.3f}",
        f"{run.e2e_mean_s:.3f}",
        f"{run.seconds:.1f}",
    ]
