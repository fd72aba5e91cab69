"""What placement is for, and what it must not cost: workloads of studies under routes, transfers, and both."""

from collections.abc import Sequence
from statistics import fmean

import attrs
import pytest

from lmpool.core.placement.proposal import USUAL
from lmpool.sim.copy_time import assumed_copies
from lmpool.sim.rack import RackSettings
from lmpool.sim.replay import Replayed, make_prompts, replay
from lmpool.sim.step_time import ACCELERATOR_DEFAULT, named_rates
from lmpool.sim.workload import make_workload
from tests.sim.racks import RACK

SEEDS = range(3)


def rack(replicas: int, blocks: int, block_size: int) -> RackSettings:
    return attrs.evolve(
        RACK,
        replicas=replicas,
        kv_blocks=blocks,
        block_size=block_size,
        step_tokens=2_048,
        sequences=256,
        rates=named_rates(ACCELERATOR_DEFAULT),
        copies=assumed_copies(block_size),
        streak_max=10_000,
    )


def runs(
    workload: str, settings: RackSettings, policy: str, *, is_placed: bool, requests: int | None = None
) -> list[Replayed]:
    """One a seed."""
    settings = attrs.evolve(settings, placement=USUAL if is_placed else None)
    found = []
    for seed in SEEDS:
        trace = make_workload(workload, requests, 0.7, seed)
        found.append(replay(trace, make_prompts(trace, settings.block_size), settings, policy, seed))
    return found


def times(replays: Sequence[Replayed]) -> tuple[float, ...]:
    """Means: to the first token, of an output token, to the last."""
    spreads = zip(*[(each.ttft_s, each.tpot_s, each.e2e_s) for each in replays], strict=True)
    return tuple(fmean(spread.mean for spread in column) for column in spreads)


def computed(replays: Sequence[Replayed]) -> float:
    return fmean(each.computed_prefill_tokens for each in replays)


@pytest.mark.parametrize(("workload", "blocks"), [("load-skew", 192), ("memory-skew", 128)])
def test_routes_with_transfers_are_better_than_either_alone(workload: str, blocks: int) -> None:
    settings = rack(6, blocks, 256)
    both = runs(workload, settings, "marginal-time", is_placed=True)
    routes = runs(workload, settings, "marginal-time", is_placed=False)
    transfers = runs(workload, settings, "round-robin", is_placed=True)
    for other in (routes, transfers):
        assert all(one < two for one, two in zip(times(both), times(other), strict=True))
        assert computed(both) < computed(other)


@pytest.mark.parametrize(("workload", "blocks"), [("load-skew", 192), ("memory-skew", 128)])
def test_routes_that_look_at_no_cache_are_better_with_transfers(workload: str, blocks: int) -> None:
    """Which bring the blocks before the requests begin that were sent elsewhere."""
    settings = rack(6, blocks, 256)
    transfers = runs(workload, settings, "round-robin", is_placed=True)
    nothing = runs(workload, settings, "round-robin", is_placed=False)
    assert all(one < two for one, two in zip(times(transfers), times(nothing), strict=True))
    assert all(each.placement is not None and dict(each.placement.admitted)["copy"] > 0 for each in transfers)


def test_full_caches_keep_what_they_have() -> None:
    """Without rent, half as much again is computed."""
    settings = rack(4, 1_000, 64)
    placed = runs("agent-sessions", settings, "marginal-time", is_placed=True, requests=720)
    plain = runs("agent-sessions", settings, "marginal-time", is_placed=False, requests=720)
    assert computed(placed) < 1.02 * computed(plain)
    assert all(one < 1.02 * two for one, two in zip(times(placed), times(plain), strict=True))


def test_no_transfer_is_begun_that_a_rank_has_to_refuse_for_its_length() -> None:
    """Documents are longer than a rank may pin."""
    for each in runs("few-long", rack(4, 2_000, 64), "marginal-time", is_placed=True, requests=150):
        assert each.placement is not None
        assert sum(count for _, count in each.placement.admitted) == each.placement.observed
