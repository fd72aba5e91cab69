"""Workloads made from a seed, as traces. `specs/workloads.md` has the definitions and says what each is for.

A generator makes arrivals of one a second; a rate makes them denser and changes nothing else, so that a search over
rates compares the same requests.
"""

from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from random import Random

import attrs

from lmpool.core.ids import SECOND, Nanos
from lmpool.sim.trace import Part, Trace, TraceError, TraceRequest, at_speed, in_order

WORKLOAD = "workload:"
"""Before the name of a workload where a file of a trace might stand."""
Span = tuple[int, int]


class _Draft:
    """A workload in the making: what it draws, and what is drawn."""

    def __init__(self, requests: int, seed: int) -> None:
        self.wanted = requests
        self.requests: list[TraceRequest] = []
        self._chance = Random(seed)
        self._content = 0
        self._arrival_s = 0.0

    def between(self, span: Span) -> int:
        return self._chance.randint(*span)

    def happens(self, share: float) -> bool:
        return self._chance.random() < share

    def pause(self, mean_s: float, most_s: float) -> Nanos:
        return Nanos(round(min(most_s, self._chance.expovariate(1 / mean_s)) * SECOND))

    def fresh(self, tokens: int) -> Part:
        """Of a content that nobody has yet."""
        self._content += 1
        return Part(self._content - 1, tokens)

    def choice(self, cumulated: list[float]) -> int:
        """An index, by cumulated weights."""
        return bisect_left(cumulated, self._chance.random() * cumulated[-1])

    def next_arrival(self) -> Nanos:
        """Poisson, one a second."""
        moment = Nanos(round(self._arrival_s * SECOND))
        self._arrival_s += self._chance.expovariate(1.0)
        return moment

    def arrive(self, at_ns: Nanos, session: str, output_tokens: int, *parts: Part) -> int:
        """Answers the number of the request."""
        self.requests.append(TraceRequest(session, at_ns, Nanos(0), None, parts, output_tokens))
        return len(self.requests) - 1

    def follow(self, before: int, pause_ns: Nanos, output_tokens: int, *parts: Part) -> int:
        session = self.requests[before].session
        self.requests.append(TraceRequest(session, None, pause_ns, before, parts, output_tokens))
        return len(self.requests) - 1

    @property
    def is_short(self) -> bool:
        return len(self.requests) < self.wanted


AGENTS, AGENT_TOKENS, TURNS = 4, 1_024, 12


def _agent_sessions(draft: _Draft) -> None:
    agents = [draft.fresh(AGENT_TOKENS) for _ in range(AGENTS)]
    while draft.is_short:
        name = f"session-{len(draft.requests) // TURNS}"
        agent = agents[draft.between((0, AGENTS - 1))]
        task = draft.fresh(draft.between((1_000, 5_000)))
        last = draft.arrive(draft.next_arrival(), name, draft.between((64, 512)), agent, task)
        for _ in range(TURNS - 1):
            tool = draft.happens(0.5)
            part = draft.fresh(draft.between((256, 3_000) if tool else (32, 256)))
            pause = draft.pause(1.0, 10.0) if tool else draft.pause(4.0, 20.0)
            last = draft.follow(last, pause, draft.between((64, 512)), part)


CONTEXTS, SKEW = 64, 1.2


def _hot_session_skew(draft: _Draft) -> None:
    contexts = [draft.fresh(draft.between((6_000, 12_000))) for _ in range(CONTEXTS)]
    weights = list(accumulate((place + 1) ** -SKEW for place in range(CONTEXTS)))
    while draft.is_short:
        place = draft.choice(weights)
        question = draft.fresh(draft.between((32, 256)))
        draft.arrive(draft.next_arrival(), f"context-{place}", draft.between((128, 384)), contexts[place], question)


def _long_decode(draft: _Draft) -> None:
    groups = [draft.fresh(512) for _ in range(32)]
    while draft.is_short:
        own = draft.fresh(draft.between((128, 1_536)))
        output = draft.between((768, 2_560))
        draft.arrive(draft.next_arrival(), "", output, groups[draft.between((0, len(groups) - 1))], own)


def _single_turn(draft: _Draft) -> None:
    while draft.is_short:
        length = draft.between((2_000, 8_000)) if draft.happens(0.5) else draft.between((200, 2_000))
        draft.arrive(draft.next_arrival(), "", draft.between((64, 512)), draft.fresh(length))


def _one_system_prompt(draft: _Draft) -> None:
    system = draft.fresh(2_048)
    while draft.is_short:
        own = draft.fresh(draft.between((100, 1_500)))
        draft.arrive(draft.next_arrival(), "", draft.between((64, 512)), system, own)


def _few_long(draft: _Draft) -> None:
    """A long document is asked about four times in its life, while others are."""
    document, left = draft.fresh(draft.between((32_000, 96_000))), 4
    while draft.is_short:
        at_ns, question = draft.next_arrival(), draft.fresh(draft.between((128, 1_024)))
        if not draft.happens(0.05):
            draft.arrive(at_ns, "", draft.between((32, 256)), question)
            continue
        if left == 0:
            document, left = draft.fresh(draft.between((32_000, 96_000))), 4
        left -= 1
        draft.arrive(at_ns, "", draft.between((128, 512)), document, question)


SIBLINGS = 16


def _sibling_bursts(draft: _Draft) -> None:
    while draft.is_short:
        at_ns, shared = draft.next_arrival(), draft.fresh(draft.between((4_000, 8_000)))
        for _ in range(SIBLINGS):
            draft.arrive(at_ns, "", draft.between((128, 256)), shared, draft.fresh(draft.between((32, 200))))


@attrs.frozen
class Workload:
    make: Callable[[_Draft], None]
    arrival: str
    """What a rate counts."""
    about: str


WORKLOADS: dict[str, Workload] = {
    "agent-sessions": Workload(_agent_sessions, "sessions", "sessions of 12 turns, closed loop"),
    "hot-session-skew": Workload(_hot_session_skew, "requests", "64 contexts, a few of which are asked about most"),
    "long-decode": Workload(_long_decode, "requests", "short prompts, answers of up to 2,560 tokens"),
    "single-turn": Workload(_single_turn, "requests", "nothing shared"),
    "one-system-prompt": Workload(_one_system_prompt, "requests", "one beginning for all"),
    "few-long": Workload(_few_long, "requests", "few long contexts among many short ones"),
    "sibling-bursts": Workload(_sibling_bursts, "bursts", "16 at once with a common beginning"),
}


def make_workload(name: str, requests: int, rate: float, seed: int) -> Trace:
    """At least so many requests, `rate` arrivals a second. Raises TraceError."""
    workload = WORKLOADS.get(name)
    if workload is None:
        raise TraceError(f"no workload is named {name!r}; there is {', '.join(WORKLOADS)}")
    draft = _Draft(requests, seed)
    workload.make(draft)
    return at_speed(in_order(Trace(WORKLOAD + name, None, tuple(draft.requests))), rate)
