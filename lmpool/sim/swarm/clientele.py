"""All clients of a seed: what they ask, when, and what the ingress does for them."""

from collections import Counter
from collections.abc import Callable
from random import Random

import attrs

from lmpool.core.effects import (
    AnswerQuery,
    CloseRequest,
    DeliverPromptLogprobs,
    DeliverStart,
    DeliverToken,
    IngressEffect,
    Outcome,
)
from lmpool.core.events import ClientGone, RequestArrived, StopFound
from lmpool.core.ids import MILLISECOND, BlockHash, Nanos, RequestId, Role
from lmpool.core.messages.ingress_control import DecisionsAsked, StateAsked
from lmpool.core.messages.ingress_worker import ClearCache
from lmpool.core.prefix import extend_chain, hash_at, namespace_digest, pack_tokens, unpack_tokens
from lmpool.core.sampling import SamplingSettings, StopSettings, greedy
from lmpool.sim.node import Node
from lmpool.sim.swarm.client import Client, Intent, new_client
from lmpool.sim.swarm.cluster import INGRESS, Cluster, IngressNode

TEXT_NS = MILLISECOND
"""At most so long after a token its text is looked at."""


class Clientele:
    """Random by its own seed, so that faults change nothing in what is asked next."""

    def __init__(self, cluster: Cluster, clients: dict[RequestId, Client], lineage: dict[bytes, bytes | None]) -> None:
        self._cluster = cluster
        self._knobs = cluster.knobs
        self._chance = Random(f"{cluster.knobs.seed} clients")
        self.clients = clients
        self._lineage = lineage
        load, chance = self._knobs.load, self._chance
        self._families = [
            [chance.randrange(load.vocabulary) for _ in range(load.family_tokens)] for _ in range(load.families)
        ]
        self._past: list[Client] = []
        """The latest, to be continued or repeated."""
        self._counter = 0
        self._query = 0
        self._is_open = True
        self._comes_after = Nanos(0)
        """Who hears that the server is busy tells others."""
        self.waiting = 0
        """Clients that have not been told an outcome and still will be."""
        self.outcomes: Counter[str] = Counter()

    def begin(self) -> None:
        self._arrive()

    def stop(self) -> None:
        """Nobody new comes."""
        self._is_open = False

    def lose(self, ingress_epoch: int) -> None:
        """Their ingress died: their connections are gone, and that is the end of their requests."""
        for request in [request for request in self.clients if request.ingress == ingress_epoch]:
            client = self.clients[request]
            client.has_left |= client.close is None
        self.waiting = 0

    # Arrivals

    def _arrive(self) -> None:
        if not self._is_open:
            return
        load = self._knobs.load
        gap = 0 if self._chance.random() < load.burst else int(self._chance.expovariate(1 / load.gap_ns))
        if self._cluster.timeline.now >= self._comes_after and self.waiting < load.waiting_max:
            self.ask()
        self._cluster.timeline.after(gap + 1, self._arrive)

    def ask(self) -> None:
        """One more request, if an ingress is there."""
        node = self._ingress()
        if node is None:
            return
        self._counter += 1
        arrived = self._draw(RequestId(node.peer.epoch, self._counter))
        client = self._client_of(node, arrived)
        self.clients[arrived.request] = client
        self.waiting += 1
        self._past = [*self._past[-12:], client]
        self._cluster.when_awake(node, lambda: node.feed(arrived))

    def _ingress(self) -> IngressNode | None:
        node = self._cluster.nodes.get(INGRESS)
        assert node is None or isinstance(node, Node)
        return node  # type: ignore[return-value]

    def _client_of(self, node: IngressNode, arrived: RequestArrived) -> Client:
        knobs, chance, load = self._knobs, self._chance, self._knobs.load
        outputs = max(arrived.stop.output_tokens_max, 1)
        stops = tuple(
            chance.randrange(outputs) if chance.random() < load.stops else None for _ in range(arrived.choices)
        )
        leaves = chance.random() < load.leaves
        after = chance.randrange(outputs) if leaves else None
        lengths = [min(knobs.model_tokens_max, worker.blocks * knobs.block_size) for worker in knobs.workers]

        def stop(choice: int, index: int) -> None:
            def find() -> None:
                client.note_stop(choice)
                node.feed(StopFound(arrived.request, choice, index))

            self._soon(node, find)

        def leave() -> None:
            client.has_left = True
            self._soon(node, lambda: node.feed(ClientGone(arrived.request)))

        client = new_client(arrived, Intent(stops, after), load.vocabulary, lengths, self._trace_lineage, stop, leave)
        if after == 0:
            self._cluster.timeline.after(chance.randrange(50 * MILLISECOND), leave)
        return client

    def _soon(self, node: IngressNode, action: Callable[[], None]) -> None:
        pause = self._chance.randrange(TEXT_NS)
        self._cluster.timeline.after(pause, lambda: self._cluster.when_awake(node, action))

    def _trace_lineage(self, client: Client) -> None:
        """Every block that its prompt and answers may fill."""
        arrived, size = client.arrived, self._knobs.block_size
        for expected in client.expected:
            tokens = arrived.prompt + pack_tokens(token for token, _ in expected)
            chain = extend_chain(BlockHash(arrived.namespace), tokens, size)
            for position in range(len(chain) // 16):
                self._lineage[hash_at(chain, position)] = hash_at(chain, position - 1) if position else None

    def _draw(self, request: RequestId) -> RequestArrived:
        chance, load, knobs = self._chance, self._knobs.load, self._knobs
        prompt, session = self._prompt()
        tenant = f"tenant {chance.randrange(load.tenants)}"
        salt = "salt" if load.tenants > 1 and chance.random() < 0.2 else None
        namespace = namespace_digest(self._cluster.base, None, tenant, salt)
        packed = pack_tokens(prompt)
        outputs = chance.randint(1, load.outputs)
        scored = chance.random() < load.scored
        prompt_logprobs = chance.randint(0, 2) if scored and chance.random() < 0.5 else None
        if prompt_logprobs is not None and len(prompt) > 1 and chance.random() < 0.3:
            outputs = 0  # a client that wants nothing at all never gets as far as the ingress
        now = self._cluster.timeline.now
        hurried = chance.random() < load.deadlines
        return RequestArrived(
            request=request,
            tenant=tenant,
            session=session,
            namespace=namespace,
            prompt=packed,
            chain=extend_chain(namespace, packed, knobs.block_size),
            choices=1 if outputs == 0 else chance.randint(1, load.choices),
            sampling=self._sampling(scored),
            stop=self._stop(outputs),
            prompt_logprobs=prompt_logprobs,
            priority=chance.randint(-2, 2) if chance.random() < load.priorities else 0,
            arrived_ns=now,
            deadline_ns=Nanos(now + 1 + chance.randrange(load.deadline_ns)) if hurried else None,
            draw=chance.getrandbits(63),
        )

    def _prompt(self) -> tuple[list[int], str]:
        chance, load = self._chance, self._knobs.load
        if self._past and chance.random() < load.turns:
            client = chance.choice(self._past)
            prompt = unpack_tokens(client.arrived.prompt).tolist()
            answer = [token for token, _ in client.expected[0]]
            room = max(160 - len(prompt), 0)
            prompt += answer[:room] + self._tokens(chance.randint(1, 8))
            return prompt, client.arrived.session
        if self._past and chance.random() < load.repeats:
            client = chance.choice(self._past)
            return unpack_tokens(client.arrived.prompt).tolist(), client.arrived.session
        family = chance.choice(self._families)
        prompt = family[: chance.choice((len(family), chance.randint(0, len(family))))]
        prompt = prompt + self._tokens(chance.randint(1, load.suffix_tokens))
        session = f"session {chance.randrange(load.sessions)}" if load.sessions and chance.random() < 0.7 else ""
        return prompt, session

    def _tokens(self, count: int) -> list[int]:
        return [self._chance.randrange(self._knobs.load.vocabulary) for _ in range(count)]

    def _sampling(self, scored: bool) -> SamplingSettings:  # noqa: FBT001
        chance, load = self._chance, self._knobs.load
        settings = greedy(chance.getrandbits(40))
        if chance.random() < load.warm:
            settings = attrs.evolve(settings, temperature=chance.choice((0.5, 1.0)), top_k=chance.choice((0, 5)))
        if chance.random() < load.penalised:
            settings = attrs.evolve(settings, repetition_penalty=1.3, frequency_penalty=0.4, logit_bias=((3, 2.0),))
        return attrs.evolve(settings, logprobs=chance.randint(0, 3)) if scored else settings

    def _stop(self, outputs: int) -> StopSettings:
        chance, load = self._chance, self._knobs.load
        ends: tuple[int, ...] = ()
        if chance.random() < load.ending:
            ends = tuple(range(0, load.vocabulary, 11))
        minimum = chance.randint(0, outputs) if chance.random() < load.minimum else 0
        return StopSettings(outputs, minimum, ends, ends[:1])

    # What operators ask

    def clear_caches(self) -> None:
        self._query += 1
        for rank in self._cluster.ranks:
            self._say(Role.WORKER, rank, ClearCache(self._query))

    def ask_state(self) -> None:
        self._query += 1
        for rank in self._cluster.ranks[:1]:
            self._say(Role.CONTROL, rank, StateAsked(self._query))
            self._say(Role.CONTROL, rank, DecisionsAsked(self._query, None, 4))

    def _say(self, role: Role, rank: int, message: ClearCache | StateAsked | DecisionsAsked) -> None:
        node = self._ingress()
        peer = next((node.peer for place, node in self._cluster.nodes.items() if place == (role, rank)), None)
        if node is not None and peer is not None:
            node.send(peer, message)

    # What the ingress does

    def perform(self, effect: IngressEffect) -> None:
        match effect:
            case DeliverToken() | DeliverStart() | DeliverPromptLogprobs():
                self.clients[effect.request].take(self._cluster.timeline.now, effect)
            case CloseRequest():
                self.clients[effect.request].take(self._cluster.timeline.now, effect)
                self.waiting -= 1
                self.outcomes[f"requests {effect.outcome.value}"] += 1
                if effect.outcome is Outcome.BUSY:
                    self._comes_after = Nanos(self._cluster.timeline.now + self._knobs.load.patience_ns)
            case AnswerQuery():
                pass
            case _:
                raise AssertionError(f"{effect} is no effect of an ingress here")
