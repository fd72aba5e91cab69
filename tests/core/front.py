"""An ingress machine with hand-fed peers, for tests."""

from collections.abc import Sequence
from typing import Any, TypeVar

from lmpool.core.effects import CloseRequest, DeliverToken, IngressEffect, Outcome, Send
from lmpool.core.events import IngressEvent, PeerJoined, PeerLost, Received, RequestArrived, Tick
from lmpool.core.ids import MILLISECOND, SECOND, BlockHash, Epoch, Nanos, Peer, Rank, RequestId, Role
from lmpool.core.ingress import Ingress, IngressSettings
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_control import RouteAsked, RouteDecided
from lmpool.core.messages.ingress_worker import Accepted, Ended, EndReason, Finish, Submit, TokensProduced
from lmpool.core.messages.transfer import TransfersShown
from lmpool.core.messages.worker_control import WorkerJoined
from lmpool.core.prefix import extend_chain, pack_tokens
from lmpool.core.rates import Rates
from lmpool.core.sampling import SamplingSettings, StopSettings
from lmpool.core.search import SearchSettings

EPOCH = Epoch(1)
BLOCK = 8
NAMESPACE = bytes(16)
CONTROL = Peer(Role.CONTROL, Rank(0), Epoch(2))
NEXT_CONTROL = Peer(Role.CONTROL, Rank(0), Epoch(9))
EOS = 2
NO_TRANSFERS = TransfersShown((), (), (), (), 0, 0, 0, None)
FACTS = WorkerJoined(
    namespace_base=bytes(16),
    block_size=BLOCK,
    blocks=64,
    model_tokens_max=512,
    step_tokens_max=64,
    sequences_max=8,
    rates=Rates(1e6, 1e5, 1.0, 1e5, 1.0),
)
SETTINGS = IngressSettings(
    epoch=EPOCH,
    requests_max=8,
    abort_wait_ns=Nanos(2 * SECOND),
    search=SearchSettings(
        replicas=2,
        block_size=BLOCK,
        attempts_max=3,
        route_wait_ns=SECOND,
        replica_wait_ns=Nanos(60 * SECOND),
        retry_ns=Nanos(250 * MILLISECOND),
        busy_retry_ns=SECOND,
        routes_degraded=True,
        homes_max=4,
    ),
)
SAMPLING = SamplingSettings(0.0, 1.0, 0, 0.0, 0.0, 0.0, 1.0, (), None, 7)
STOP = StopSettings(output_tokens_max=16, output_tokens_min=0, ends=(EOS, 3), hidden_ends=(EOS,))
PROMPT = tuple(range(10, 10 + 2 * BLOCK + 3))

Kind = TypeVar("Kind")


def worker(rank: int, epoch: int) -> Peer:
    return Peer(Role.WORKER, Rank(rank), Epoch(epoch))


W0, W1 = worker(0, 3), worker(1, 4)


def request(counter: int) -> RequestId:
    return RequestId(EPOCH, counter)


def arrival(counter: int, **changes: Any) -> RequestArrived:
    """Changes: any field of `RequestArrived`; `prompt` as tokens."""
    tokens: Sequence[int] = changes.pop("prompt", PROMPT)
    packed = pack_tokens(tokens)
    fields: dict[str, Any] = {
        "request": request(counter),
        "tenant": "tenant",
        "session": "",
        "namespace": NAMESPACE,
        "prompt": packed,
        "chain": extend_chain(BlockHash(NAMESPACE), packed, BLOCK),
        "choices": 1,
        "sampling": SAMPLING,
        "stop": STOP,
        "prompt_logprobs": None,
        "priority": 0,
        "arrived_ns": Nanos(0),
        "deadline_ns": None,
        "draw": 5,
    }
    return RequestArrived(**{**fields, **changes})


def tokens_produced(*rows: tuple[int, int, int, int, int, Finish | None]) -> TokensProduced:
    """Rows of counter, attempt, choice, output index, token, finish."""
    requests, attempts, choices, indexes, tokens, finishes = zip(*rows, strict=True)
    return TokensProduced(requests, attempts, choices, indexes, tokens, (), finishes)


class Front:
    """Feeds an ingress and keeps the effects; checks what holds for every stream of effects."""

    def __init__(self, settings: IngressSettings = SETTINGS) -> None:
        self.now = Nanos(0)
        self.machine = Ingress(settings, self.now)
        self.effects: list[IngressEffect] = []
        """Of the last event."""
        self.closed: dict[int, CloseRequest] = {}
        self.delivered: dict[tuple[int, int], list[int]] = {}
        """Tokens by counter and choice."""

    def feed(self, event: IngressEvent) -> list[IngressEffect]:
        self.effects = self.machine.handle(self.now, event)
        for effect in self.effects:
            if not isinstance(effect, Send) and hasattr(effect, "request"):
                assert effect.request.counter not in self.closed, f"{effect} after its end"
            match effect:
                case CloseRequest():
                    self.closed[effect.request.counter] = effect
                case DeliverToken(request=of, choice=choice, output_index=index, token=token):
                    tokens = self.delivered.setdefault((of.counter, choice), [])
                    assert index == len(tokens), f"{effect} after {len(tokens)} tokens"
                    tokens.append(token)
                case _:
                    pass
        return self.effects

    def hear(self, peer: Peer, message: Message) -> list[IngressEffect]:
        return self.feed(Received(peer, message))

    def wait(self, nanos: int) -> list[IngressEffect]:
        self.now = Nanos(self.now + nanos)
        return self.feed(Tick())

    def join(self, *peers: Peer) -> None:
        """Workers say what they are."""
        for peer in peers:
            self.feed(PeerJoined(peer))
            if peer.role is Role.WORKER:
                self.hear(peer, FACTS)

    def lose(self, peer: Peer) -> list[IngressEffect]:
        return self.feed(PeerLost(peer))

    def sent(self, kind: type[Kind]) -> list[tuple[Peer, Kind]]:
        """Messages of the last event."""
        return [
            (effect.peer, effect.message)
            for effect in self.effects
            if isinstance(effect, Send) and isinstance(effect.message, kind)
        ]

    def asked(self) -> RouteAsked:
        """The one question of the last event."""
        ((_, question),) = self.sent(RouteAsked)
        return question

    def submitted(self) -> tuple[Peer, Submit]:
        """The one submit of the last event."""
        (submit,) = self.sent(Submit)
        return submit

    def decide(self, asked: RouteAsked, peer: Peer) -> list[IngressEffect]:
        return self.hear(
            CONTROL, RouteDecided(asked.request, asked.attempt, 1, peer.rank, peer.epoch, "least time", 0, None)
        )

    def accept(self, peer: Peer, submit: Submit) -> list[IngressEffect]:
        return self.hear(peer, Accepted(submit.request, submit.attempt, 16, Nanos(0)))

    def produce(self, peer: Peer, submit: Submit, choice: int, index: int, token: int) -> list[IngressEffect]:
        row = (submit.request.counter, submit.attempt, choice, index, token, None)
        return self.hear(peer, tokens_produced(row))

    def finish(self, peer: Peer, submit: Submit, choice: int, index: int, token: int) -> list[IngressEffect]:
        """With its last token, by the length limit."""
        row = (submit.request.counter, submit.attempt, choice, index, token, Finish.LENGTH)
        return self.hear(peer, tokens_produced(row))

    def end(self, peer: Peer, submit: Submit, reason: EndReason) -> list[IngressEffect]:
        return self.hear(peer, Ended(submit.request, submit.attempt, reason))

    def outcome(self, counter: int) -> Outcome | None:
        close = self.closed.get(counter)
        return None if close is None else close.outcome

    def phase(self) -> str | None:
        """Of the only open request."""
        phases = [name for name, count in self.machine.snapshot().phases for _ in range(count)]
        assert len(phases) < 2
        return phases[0] if phases else None


def ready_front(settings: IngressSettings = SETTINGS) -> Front:
    """Control and two workers are linked."""
    front = Front(settings)
    front.join(CONTROL, W0, W1)
    return front


def submitted_front(**changes: Any) -> tuple[Front, Submit]:
    """Request 1 has been sent to worker 0."""
    front = ready_front()
    front.feed(arrival(1, **changes))
    front.decide(front.asked(), W0)
    peer, submit = front.submitted()
    assert peer == W0
    return front, submit


def streaming_front(**changes: Any) -> tuple[Front, Submit]:
    """Request 1 has begun at worker 0."""
    front, submit = submitted_front(**changes)
    front.accept(W0, submit)
    return front, submit
