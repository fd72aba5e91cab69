"""Small clusters and traces for tests of replays."""

import attrs

from lmpool.core.batch import PrefillOrder
from lmpool.core.ids import MILLISECOND, SECOND, Nanos
from lmpool.core.rates import Rates
from lmpool.sim.copy_time import CopyRates
from lmpool.sim.rack import RackSettings
from lmpool.sim.trace import Part, Trace, TraceRequest

RATES = Rates(step=5e6, prefill=2e4, prefill_context=1.0, decode=1e4, decode_context=20.0)
COPIES = CopyRates(begin=3e6, block=1e5, block_bytes=1 << 20)
RACK = RackSettings(
    replicas=3,
    kv_blocks=200,
    block_size=16,
    step_tokens=128,
    sequences=16,
    prefill_order=PrefillOrder.SHORT_BETWEEN,
    rates=RATES,
    copies=COPIES,
    slow=(),
    cold=(),
    streak_max=1_000,
    decisions_kept=1_024,
    placement=None,
)
SINGLE_STEPS = attrs.evolve(RACK, streak_max=1)


def asked(at_ms: float, *parts: tuple[int, int], output: int = 8, session: str = "") -> TraceRequest:
    at_ns = Nanos(round(at_ms * MILLISECOND))
    return TraceRequest(session, at_ns, Nanos(0), None, tuple(Part(*part) for part in parts), output)


def continued(before: int, pause_s: float, *parts: tuple[int, int], output: int = 8) -> TraceRequest:
    return TraceRequest("", None, Nanos(round(pause_s * SECOND)), before, tuple(Part(*part) for part in parts), output)


def trace(*requests: TraceRequest) -> Trace:
    return Trace("test", None, requests)


def mixed(requests: int) -> Trace:
    """Five groups that share 100 tokens, lengths and outputs of all kinds, faster than three ranks are at ease with."""
    made = []
    for number in range(requests):
        group, own = number % 5, 10 + number * 37 % 150
        made.append(asked(number * 23.7, (group, 100), (100 + number, own), output=1 + number * 13 % 60))
    return trace(*made)
