"""A request at the ingress, from its arrival until its client has been told the outcome.

`specs/request.md` has the table of its phases.
"""

from array import array
from typing import TypeAlias, assert_never

import attrs

from lmpool.core.effects import CloseRequest, Outcome
from lmpool.core.events import RequestArrived
from lmpool.core.history import History, Visits
from lmpool.core.ids import BlockHash, Nanos, Peer, Rank, RequestId
from lmpool.core.messages.ingress_control import RouteAsked
from lmpool.core.messages.ingress_worker import EndReason, Finish, Refused, Submit
from lmpool.core.messages.transfer import Awaited
from lmpool.core.prefix import HASH_BYTES, TOKEN_BYTES, chain_length, extend_chain, hash_at, pack_tokens

FAULTS = {
    Finish.NOT_FINITE: "The model's output was not finite.",
    Finish.STEP_FAILED: "The model failed on this request.",
}
NONSENSE = "The replica's answer had a gap."
LATE = "The request was not complete at its deadline."


@attrs.frozen
class Routing:
    """Control is asked."""

    until_ns: Nanos
    """Then it has not answered."""


@attrs.frozen
class Waiting:
    """No replica can take it now."""

    until_ns: Nanos
    """Then it is tried again, or earlier."""


@attrs.frozen
class Submitted:
    """Sent to a worker, and not begun there."""

    worker: Peer


@attrs.frozen
class Streaming:
    """The worker has begun it."""

    worker: Peer


@attrs.frozen
class Leaving:
    """Aborted at its worker, whose word that nothing is left there is awaited."""

    worker: Peer
    until_ns: Nanos
    """Then the word is no longer awaited."""
    close: CloseRequest


Phase: TypeAlias = Routing | Waiting | Submitted | Streaming | Leaving

PHASE_NAMES: dict[type[Phase], str] = {
    Routing: "routing",
    Waiting: "waiting",
    Submitted: "submitted",
    Streaming: "streaming",
    Leaving: "leaving",
}


@attrs.define
class OpenChoice:
    output: "array[int]"
    """Every token that has come, whether or not its client has taken it."""
    is_open: bool


@attrs.define
class OpenRequest:
    """Owned by the ingress machine."""

    arrived: RequestArrived
    phase: Phase
    choices: list[OpenChoice]
    attempt: int
    """Of the last question or submit; answers to others are dropped."""
    patience_ns: Nanos
    """While it has no worker: when the search for one ends. Its deadline, if it has one."""
    has_begun: bool
    """Some worker has begun it."""
    scored: int
    """Prompt positions whose log-probabilities were delivered, the first (which has none) included."""
    refusals: int
    refused: dict[Peer, Refused]
    """By workers in the present search; the latest is last."""
    unreachable: list[Rank]
    """Ranks that control named in the present search, and to whose life it named there is no link."""
    losses: int
    """Workers in a row that were lost after they had begun it, and before they brought anything."""
    misses: int
    """Workers in a row that were lost before they had begun it: hardly by its doing, as where all are lost at once."""
    has_progressed: bool
    """Its present worker has brought something."""
    is_booked: bool
    """Control has a booking of it, and its worker has not begun it: perhaps no report will ever name it."""
    is_offered: bool
    """Control was offered its booking: its reports may have missed its end."""
    visits: Visits

    @property
    def id(self) -> RequestId:
        return self.arrived.request

    @property
    def counter(self) -> int:
        return self.arrived.request.counter

    def lacks_before(self, number: int, index: int) -> bool:
        """Whether there is no such choice, or a token of this output index leaves a gap in it. What comes after the
        end of a choice leaves none."""
        if number >= len(self.choices):
            return True
        choice = self.choices[number]
        return choice.is_open and index > len(choice.output)

    @property
    def worker(self) -> Peer | None:
        """Where it is or may still be."""
        match self.phase:
            case Submitted(worker=worker) | Streaming(worker=worker) | Leaving(worker=worker):
                return worker
            case _:
                return None

    @property
    def is_at_worker(self) -> bool:
        """Whether its worker is to go on with it."""
        return isinstance(self.phase, Submitted | Streaming)

    @property
    def is_pledged(self) -> bool:
        """A worker was to have it before: it is no longer turned away because others are busy."""
        return self.has_begun or self.misses > 0

    @property
    def prompt_tokens(self) -> int:
        return len(self.arrived.prompt) // TOKEN_BYTES

    @property
    def is_scoring(self) -> bool:
        """Whether prompt positions are still to be scored."""
        return self.arrived.prompt_logprobs is not None and self.scored < self.prompt_tokens

    @property
    def is_complete(self) -> bool:
        if self.is_scoring:
            return False
        return self.arrived.stop.output_tokens_max == 0 or not any(choice.is_open for choice in self.choices)

    @property
    def deadline(self) -> Nanos | None:
        """When something has to happen even if nothing is heard."""
        match self.phase:
            case Leaving(until_ns=until):
                return until
            case Routing(until_ns=until) | Waiting(until_ns=until):
                until = min(until, self.patience_ns)
                return until if self.arrived.deadline_ns is None else min(until, self.arrived.deadline_ns)
            case _:
                return self.arrived.deadline_ns


def open_request(arrived: RequestArrived, phase: Phase) -> OpenRequest:
    return OpenRequest(
        arrived=arrived,
        phase=phase,
        choices=[OpenChoice(array("I"), is_open=True) for _ in range(arrived.choices)],
        attempt=-1,
        patience_ns=Nanos(0),
        has_begun=False,
        scored=1,
        refusals=0,
        refused={},
        unreachable=[],
        losses=0,
        misses=0,
        has_progressed=False,
        is_booked=False,
        is_offered=False,
        visits=Visits([]),
    )


def history(request: OpenRequest, close: CloseRequest | None, now: Nanos) -> History:
    """So far; with `close` for ever."""
    return History(
        request=request.id,
        tenant=request.arrived.tenant,
        arrived_ns=request.arrived.arrived_ns,
        prompt_tokens=request.prompt_tokens,
        output_tokens=sum(len(choice.output) for choice in request.choices),
        visits=request.visits.all(),
        phase=PHASE_NAMES[type(request.phase)] if close is None else "closed",
        outcome=None if close is None else close.outcome,
        detail="" if close is None else close.detail,
        ended_ns=None if close is None else now,
    )


def early_end(request: RequestId, reason: EndReason) -> CloseRequest:
    """The worker is done with it, and nobody here has asked it to be."""
    match reason:
        case EndReason.DEADLINE:
            return CloseRequest(request, Outcome.DEADLINE, LATE, Nanos(0))
        case EndReason.STEP_FAILED:
            return CloseRequest(request, Outcome.FAILED, FAULTS[Finish.STEP_FAILED], Nanos(0))
        case EndReason.COMPLETE | EndReason.ABORTED:
            detail = f"The replica ended the request early ({reason.value})."
            return CloseRequest(request, Outcome.FAILED, detail, Nanos(0))
        case _:
            assert_never(reason)


def question(request: OpenRequest, block_size: int, excluded: tuple[Rank, ...]) -> RouteAsked:
    """Of several choices the longest counts: its blocks are the deepest that may be found."""
    arrived = request.arrived
    longest = max((choice.output for choice in request.choices if choice.is_open), key=len)
    return RouteAsked(
        request=arrived.request,
        attempt=request.attempt,
        chain=_chain_with(arrived, longest, block_size),
        namespace=arrived.namespace,
        prompt_tokens=request.prompt_tokens + len(longest),
        output_tokens_max=arrived.stop.output_tokens_max - len(longest),
        choices=sum(choice.is_open for choice in request.choices),
        session=arrived.session,
        priority=arrived.priority,
        arrived_ns=arrived.arrived_ns,
        deadline_ns=arrived.deadline_ns,
        excluded=excluded,
        draw=arrived.draw,
    )


def submission(request: OpenRequest, awaits: Awaited | None) -> Submit:
    """The rest of the request: open choices with what has come of them."""
    arrived = request.arrived
    numbers = [number for number, choice in enumerate(request.choices) if choice.is_open]
    return Submit(
        request=arrived.request,
        attempt=request.attempt,
        namespace=arrived.namespace,
        prompt=arrived.prompt,
        chain=arrived.chain,
        choices=tuple(numbers),
        outputs=tuple(pack_tokens(request.choices[number].output) for number in numbers),
        sampling=arrived.sampling,
        stop=arrived.stop,
        prompt_logprobs=arrived.prompt_logprobs if request.is_scoring else None,
        priority=arrived.priority,
        arrived_ns=arrived.arrived_ns,
        deadline_ns=arrived.deadline_ns,
        awaits=awaits,
    )


def _chain_with(arrived: RequestArrived, output: "array[int]", block_size: int) -> bytes:
    if not output:
        return arrived.chain
    blocks = chain_length(arrived.chain)
    last = hash_at(arrived.chain, blocks - 1) if blocks else BlockHash(arrived.namespace)
    rest = arrived.prompt[blocks * block_size * TOKEN_BYTES :] + pack_tokens(output)
    assert len(arrived.chain) % HASH_BYTES == 0
    return arrived.chain + extend_chain(last, rest, block_size)
