"""What users of pools of replicas report, by the numbers of `specs/faults.md`: it must not happen to a whole pool."""

import random

import attrs

from lmpool.core.ids import MILLISECOND, Nanos
from lmpool.sim.replay import Replay, Replayed, make_prompts
from lmpool.sim.trace import Trace
from tests.sim.racks import RACK, asked, trace

FOUR = attrs.evolve(RACK, replicas=4, kv_blocks=2_000)
LOOK_NS = 50 * MILLISECOND
QUEUE = 4


def popular(requests: int) -> Trace:
    """Nine of ten begin with the same 2,000 tokens; together they are two thirds of what four ranks can do."""
    chance = random.Random(1)
    made, at_ms = [], 0.0
    for number in range(requests):
        at_ms += chance.expovariate(1 / 12)
        shared = [(0, 2_000)] if number % 10 else []
        own = (1 + number, chance.choice((100, 200, 400, 1_600)))
        made.append(asked(at_ms, *shared, own, output=chance.choice((10, 40, 160))))
    return trace(*made)


def run(policy: str) -> tuple[Replayed, int]:
    """Figures, and how often a rank was seen idle while another had a queue."""
    made = popular(400)
    replay = Replay(made, make_prompts(made, FOUR.block_size), FOUR, policy, 0)
    idle, now = 0, Nanos(0)
    while replay.front.closed < len(made.requests):
        now = Nanos(now + LOOK_NS)
        replay.advance_to(now)
        seen = [worker.worker.snapshot() for worker in replay.rack.workers]
        idle += max(one.waiting for one in seen) > QUEUE and min(one.waiting + one.running for one in seen) == 0
    return replay.figures(), idle


def test_b44_a_popular_prefix_spreads_and_beats_affinity_alone_and_turns() -> None:
    (ours, idle), (affinity, affinity_idle), (turns, _) = map(run, ("default", "longest-prefix", "round-robin"))
    assert affinity_idle > 10
    assert idle == 0
    assert ours.ttft_s.p99 < 0.8 * turns.ttft_s.p99
    assert ours.ttft_s.p99 < 0.2 * affinity.ttft_s.p99
