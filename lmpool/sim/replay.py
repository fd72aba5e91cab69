"""One trace under one policy: the run, and its figures."""

from hashlib import blake2b
from statistics import fmean

import attrs

from lmpool.core.ids import SECOND, Nanos
from lmpool.core.messages.transfer import PlacementShown
from lmpool.sim.collection import uncollected
from lmpool.sim.front import Front, RequestTimes
from lmpool.sim.prompts import Prompts
from lmpool.sim.rack import BEGIN_NS, INGRESS, Rack, RackSettings, namespace
from lmpool.sim.timeline import Timeline
from lmpool.sim.trace import Trace, check_block_size, prompt_lengths


@attrs.frozen
class Spread:
    mean: float
    p50: float
    p99: float


@attrs.frozen
class Replayed:
    """Times are seconds, of requests that ended whole; TTFT counts from the planned arrival."""

    policy: str
    requests: int
    unserved: int
    reuse: float
    """Prompt tokens found in complete cached blocks over all prompt tokens, at each request's first begin."""
    computed_prefill_tokens: int
    resumed_prefill_tokens: int
    """Of those: what preempted sequences computed again."""
    cached_tokens: int
    prompt_tokens: int
    output_tokens: int
    ttft_s: Spread
    tpot_s: Spread
    """Of requests with more than one output token."""
    e2e_s: Spread
    busy: int
    """How often a client was turned away and came again."""
    refused: int
    """How often a worker refused a request, which was routed again."""
    preemptions: int
    span_s: float
    """From the first arrival to the last token."""
    placement: PlacementShown | None
    """What control began of its own accord, and what it did not."""
    digest: str
    """Of the final state of every machine and of what every request saw."""


class Replay:
    """A run in progress: `advance` until it is done."""

    def __init__(self, trace: Trace, prompts: Prompts, settings: RackSettings, policy: str, seed: int) -> None:
        self._trace = trace
        self._prompts = prompts
        self._policy = policy
        self._timeline = Timeline(Nanos(0))
        outputs = [request.output_tokens for request in trace.requests]
        self.rack = Rack(settings, policy, outputs, self._timeline)
        base = namespace(settings.block_size)[1]
        self.front = Front(self._timeline, INGRESS, trace, prompts, base, settings.replicas, seed)
        self.rack.open(self.front)
        self.front.begin(BEGIN_NS)

    def advance(self, requests: int) -> bool:
        """Until so many more requests have ended or were decided. False: all have ended."""
        front, advance = self.front, self._timeline.advance
        closed, decided, total = front.closed + requests, front.decided + requests, len(self._trace.requests)
        while front.closed < closed and front.decided < decided and front.closed < total:
            advanced = advance()
            assert advanced, "requests are open and nothing will happen"
        return front.closed < total

    def advance_to(self, at_ns: Nanos) -> None:
        """Until then, from the beginning of the trace, or until all requests have ended."""
        front, timeline, total = self.front, self._timeline, len(self._trace.requests)
        until = BEGIN_NS + at_ns
        while front.closed < total and timeline.next_at is not None and timeline.next_at <= until:
            timeline.advance()

    def figures(self) -> Replayed:
        front, trace = self.front, self._trace
        whole = [(number, times) for number, times in enumerate(front.times) if times.ended_ns >= 0]
        begun = [(number, times) for number, times in enumerate(front.times) if times.cached_tokens >= 0]
        prompts = sum(self._prompts.lengths[number] for number, _ in begun)
        cached = sum(times.cached_tokens for _, times in begun)
        totals = [worker.worker.snapshot().totals for worker in self.rack.workers]
        computed = sum(total.tokens_computed for total in totals)
        return Replayed(
            policy=self._policy,
            requests=len(trace.requests),
            unserved=len(front.unserved),
            reuse=cached / prompts if prompts else 0.0,
            computed_prefill_tokens=computed,
            resumed_prefill_tokens=max(computed - (prompts - cached), 0),
            cached_tokens=cached,
            prompt_tokens=prompts,
            output_tokens=sum(trace.requests[number].output_tokens for number, _ in whole),
            ttft_s=spread([(times.first_ns - times.arrived_ns) / SECOND for _, times in whole]),
            tpot_s=spread(
                [
                    _gap_s(times, trace.requests[number].output_tokens)
                    for number, times in whole
                    if trace.requests[number].output_tokens > 1
                ]
            ),
            e2e_s=spread([(times.ended_ns - times.arrived_ns) / SECOND for _, times in whole]),
            busy=sum(times.busy for times in front.times),
            refused=sum(times.refused for times in front.times),
            preemptions=sum(total.preemptions for total in totals),
            span_s=(max((times.ended_ns for _, times in whole), default=BEGIN_NS) - BEGIN_NS) / SECOND,
            placement=self.rack.control.snapshot().state.transfers.placement,
            digest=self._digest(),
        )

    def _digest(self) -> str:
        state = blake2b(digest_size=16)
        state.update(self.rack.control.digest())
        for worker in self.rack.workers:
            state.update(worker.worker.digest())
        for times in self.front.times:
            state.update(repr(attrs.astuple(times, recurse=False)).encode())
        return state.hexdigest()


def _gap_s(times: RequestTimes, tokens: int) -> float:
    return (times.ended_ns - times.first_ns) / (tokens - 1) / SECOND


def spread(values: list[float]) -> Spread:
    """Of nothing, zeros. The p99 is the least value that 99 % do not exceed."""
    if not values:
        return Spread(0.0, 0.0, 0.0)
    ranked = sorted(values)
    return Spread(fmean(ranked), ranked[_place(len(ranked), 0.5)], ranked[_place(len(ranked), 0.99)])


def _place(count: int, share: float) -> int:
    return max(-(-int(count * share * 1000) // 1000) - 1, 0)


def replay(trace: Trace, prompts: Prompts, settings: RackSettings, policy: str, seed: int) -> Replayed:
    """A whole run."""
    run = Replay(trace, prompts, settings, policy, seed)
    with uncollected():
        while run.advance(len(trace.requests)):
            pass
    return run.figures()


def make_prompts(trace: Trace, block_size: int) -> Prompts:
    """Raises TraceError."""
    check_block_size(trace, block_size)
    return Prompts(trace, namespace(block_size)[1], block_size, prompt_lengths(trace))
