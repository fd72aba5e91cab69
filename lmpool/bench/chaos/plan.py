"""What strikes which process, and when: drawn from a seed before anything runs."""

from enum import Enum
from random import Random

import attrs

PAUSE_S = (5.0, 9.0)
"""Between two strikes."""
FIRST_S = (1.0, 4.0)
LAST_S = 3.0
"""Before the end: what is struck then has still to recover under load."""
OUTAGES_MIN = 5
"""Of all workers at once, in a run of minutes."""
LONG_S = 300.0
STOP_S = (0.5, 12.0)
"""How long a process stands still, unless it is taken for dead and replaced before."""


class Blow(Enum):
    """What happens to a process, or to all workers."""

    KILL_WORKER = "kill worker"
    STOP_WORKER = "stop worker"
    KILL_CONTROL = "kill control"
    STOP_CONTROL = "stop control"
    KILL_INGRESS = "kill ingress"
    STOP_INGRESS = "stop ingress"
    OUTAGE = "kill all workers"


WEIGHTS = {
    Blow.KILL_WORKER: 8,
    Blow.STOP_WORKER: 4,
    Blow.KILL_CONTROL: 3,
    Blow.STOP_CONTROL: 2,
    Blow.KILL_INGRESS: 2,
    Blow.STOP_INGRESS: 1,
}


@attrs.frozen
class Strike:
    at_s: float
    """From the begin of the load; later if the pool has not recovered by then."""
    blow: Blow
    draw: int
    """Chooses among the processes that are there."""
    stop_s: float


def draw_plan(seconds: float, seed: int, strikes_max: int) -> tuple[Strike, ...]:
    random = Random(f"strikes {seed}")
    plan = []
    at = random.uniform(*FIRST_S)
    while at < seconds - LAST_S:
        blow = random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        plan.append(Strike(at, blow, random.getrandbits(32), random.uniform(*STOP_S)))
        at += random.uniform(*PAUSE_S)
    outages = 0 if len(plan) < 2 else max(1, round(len(plan) / 8))
    if seconds >= LONG_S:
        outages = max(outages, OUTAGES_MIN)
    for number in range(outages):  # evenly over the run, wherever the strikes fall
        place = (2 * number + 1) * len(plan) // (2 * outages)
        plan[place] = attrs.evolve(plan[place], blow=Blow.OUTAGE)
    return tuple(plan[:strikes_max])
