"""`lmpool bench locality`: how much prefill routing saves on live replicas, policy against policy.

Agent sessions (closed loop, specs/workloads.md) run against fresh replicas for each policy, KV budget and seed. A
budget of 0.55 means that each replica can hold 0.55 of the different blocks of all sessions at their last turn.
"""

import argparse
import asyncio
import json
import math
from collections.abc import Iterable, Sequence

import attrs
from tqdm import tqdm

from lmpool.bench.flags import output, profiled, scale
from lmpool.bench.load.client import LEAD_NS
from lmpool.bench.load.contents import RandomTokens
from lmpool.bench.load.counters import rank_counters
from lmpool.bench.load.figures import Bounds, Figures, figures
from lmpool.bench.load.in_process import EngineEndpoint
from lmpool.bench.load.player import Player
from lmpool.bench.table import table_lines
from lmpool.bench.trial.workload import first_turns
from lmpool.core.ids import Nanos
from lmpool.core.prefix import chain_length, split_chain
from lmpool.core.route import POLICIES
from lmpool.io.clock import monotonic_now
from lmpool.io.engine import AsyncEngine
from lmpool.io.settings.tree import PoolSettings
from lmpool.sim.bounds import sharing
from lmpool.sim.replay import make_prompts
from lmpool.sim.trace import Trace, prompt_lengths, scaled, with_pauses
from lmpool.sim.workload import TURNS, make_workload

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
SESSIONS_PER_S = 8.0
PAUSES = 0.4
"""Of the pauses of agents and people, so that a run is over in minutes."""
REPORT_WAIT_S = 1.0
"""Reports come at least twice a second; after this the counters are complete."""
QUICK = {"seed": [1], "sessions": 6, "turns": 5}


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
    """Of the workload: what no policy can avoid to compute, with an endless cache."""
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
    parser.add_argument("--turns", type=int, choices=range(1, TURNS + 1), default=TURNS, metavar="N")
    parser.add_argument("--vocabulary", type=int, default=32_000, metavar="N", help="prompts have ids below this")
    parser.add_argument(
        "--scale", type=scale, default=0.1, metavar="X", help="of all token counts (default %(default)s)"
    )
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", type=output, metavar="FILE", help="write the figures there as well")
    runs = asyncio.run(_measure(profiled(parser, QUICK, arguments)))
    print("\n".join(table_lines(COLUMNS, [_row(run, runs) for run in runs])))
    return 0


async def _measure(given: argparse.Namespace) -> list[Run]:
    runs: list[Run] = []
    cells = [(budget, seed, policy) for budget in given.budget for seed in given.seed for policy in given.policy]
    with tqdm(total=len(cells), desc="runs", unit="run") as bar:
        for budget, seed, policy in cells:
            bar.set_postfix_str(f"{policy}, budget {budget:g}, seed {seed}")
            runs.append(await _run(given, policy, budget, seed))
            bar.update()
            if given.json:
                given.json.write_text(json.dumps([attrs.asdict(run) for run in runs], indent=1))
    return runs


async def _run(given: argparse.Namespace, policy: str, budget: float, seed: int) -> Run:
    trace = session_trace(given.sessions, given.turns, given.scale, seed)
    block_size = PoolSettings().block_size
    kv_blocks = math.ceil(budget * blocks_at_end(trace, block_size))
    engine = AsyncEngine(
        given.model, given.replicas, dtype=given.dtype, kv_blocks=kv_blocks, policy=policy, placement="off"
    )
    async with engine:
        before = await engine.pool_state()
        found = await _drive(engine, trace, RandomTokens(given.vocabulary, seed))
        await asyncio.sleep(REPORT_WAIT_S)
        after = await engine.pool_state()
    asked, counted = rank_counters(before.ranks), rank_counters(after.ranks)
    cached = counted.cached - asked.cached
    resumed = found.resumed_ttft_s
    assert found.ttft_s is not None
    assert found.e2e_s is not None
    return Run(
        policy=policy,
        budget=budget,
        seed=seed,
        workload=trace.fingerprint,
        kv_blocks=kv_blocks,
        floor_tokens=prefill_floor(trace, block_size),
        computed_tokens=round(counted.asked - asked.asked - cached),
        cached_tokens=round(cached),
        ttft_mean_s=found.ttft_s.mean,
        ttft_p99_s=found.ttft_s.p99,
        resumed_ttft_mean_s=0.0 if resumed is None else resumed.mean,
        e2e_mean_s=found.e2e_s.mean,
        seconds=found.window_s,
        routed=tuple(new.routed - old.routed for old, new in zip(before.ranks, after.ranks, strict=True)),
    )


async def _drive(engine: AsyncEngine, trace: Trace, contents: RandomTokens) -> Figures:
    """Raises RuntimeError if a request fails: a run with errors has no figures."""
    endpoint = EngineEndpoint(engine, contents, monotonic_now)
    player = Player(trace, endpoint, monotonic_now, lambda _: None, is_forced=True)
    measured = await player.run(Nanos(monotonic_now() + LEAD_NS))
    failed = [one for one in measured if one.fault]
    if failed:
        raise RuntimeError(f"request {failed[0].number}: {failed[0].fault}: {failed[0].detail}")
    resumed = [request.continues is not None for request in trace.requests]
    return figures(measured, resumed, player.stalls_ns, Bounds(None, None))


def session_trace(sessions: int, turns: int, scale: float, seed: int) -> Trace:
    """The first turns of agent sessions."""
    made = make_workload("agent-sessions", sessions * TURNS, SESSIONS_PER_S, seed)
    return with_pauses(scaled(first_turns(made, turns), scale), PAUSES)


def blocks_at_end(trace: Trace, block_size: int) -> int:
    """Different blocks of all sessions at their last turn."""
    ended = {request.continues for request in trace.requests}
    return different_blocks(trace, [number for number in range(len(trace.requests)) if number not in ended], block_size)


def different_blocks(trace: Trace, numbers: Iterable[int], block_size: int) -> int:
    """Of these requests and their answers."""
    prompts, lengths = make_prompts(trace, block_size), prompt_lengths(trace)
    blocks: set[bytes] = set()
    own = 0
    for number in numbers:
        chain = prompts.chain(number, prompts.packed(number))
        blocks.update(split_chain(chain))
        tokens = lengths[number] + trace.requests[number].output_tokens
        own += -(-tokens // block_size) - chain_length(chain)
    return len(blocks) + own


def prefill_floor(trace: Trace, block_size: int) -> int:
    tokens = sum(prompt_lengths(trace))
    return round(tokens * (1 - sharing(trace, make_prompts(trace, block_size), block_size).tokens))


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
