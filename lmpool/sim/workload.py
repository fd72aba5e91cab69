"""Workloads made from a seed, as traces. `specs/workloads.md` has the definitions and says what each is for.

A generator makes arrivals of one a second; a rate makes them denser and changes nothing else, so that a search over
rates compares the same requests.
"""

from collections.abc import Callable
from functools import partial
from itertools import accumulate

import attrs

from lmpool.core.ids import Nanos
from lmpool.sim import study_workloads
from lmpool.sim.draft import Draft
from lmpool.sim.trace import Part, Trace, TraceError, at_speed, in_order

WORKLOAD = "workload:"
"""Before the name of a workload where a file of a trace might stand."""


AGENTS, AGENT_TOKENS, TURNS = 4, 1_024, 12


def _agent_sessions(draft: Draft) -> None:
    agents = [draft.fresh(AGENT_TOKENS) for _ in range(AGENTS)]
    while draft.is_short:
        _agent_session(draft, agents, draft.next_arrival)


def _high_concurrency(draft: Draft) -> None:
    """The same sessions, all begun at one moment."""
    agents = [draft.fresh(AGENT_TOKENS) for _ in range(AGENTS)]
    while draft.is_short:
        _agent_session(draft, agents, lambda: Nanos(0))


def _agent_session(draft: Draft, agents: list[Part], arrival: Callable[[], Nanos]) -> None:
    name = f"session-{len(draft.requests) // TURNS}"
    agent = agents[draft.between((0, AGENTS - 1))]
    task = draft.fresh(draft.between((1_000, 5_000)))
    last = draft.arrive(arrival(), name, draft.between((64, 512)), agent, task)
    for _ in range(TURNS - 1):
        tool = draft.happens(0.5)
        part = draft.fresh(draft.between((256, 3_000) if tool else (32, 256)))
        pause = draft.pause(1.0, 10.0) if tool else draft.pause(4.0, 20.0)
        last = draft.follow(last, pause, draft.between((64, 512)), part)


CONTEXTS, SKEW = 64, 1.2


def _hot_session_skew(draft: Draft, skew: float = SKEW) -> None:
    contexts = [draft.fresh(draft.between((6_000, 12_000))) for _ in range(CONTEXTS)]
    weights = list(accumulate((place + 1) ** -skew for place in range(CONTEXTS)))
    while draft.is_short:
        place = draft.choice(weights)
        question = draft.fresh(draft.between((32, 256)))
        draft.arrive(draft.next_arrival(), f"context-{place}", draft.between((128, 384)), contexts[place], question)


def _long_decode(draft: Draft) -> None:
    groups = [draft.fresh(512) for _ in range(32)]
    while draft.is_short:
        own = draft.fresh(draft.between((128, 1_536)))
        output = draft.between((768, 2_560))
        draft.arrive(draft.next_arrival(), "", output, groups[draft.between((0, len(groups) - 1))], own)


def _single_turn(draft: Draft) -> None:
    while draft.is_short:
        length = draft.between((2_000, 8_000)) if draft.happens(0.5) else draft.between((200, 2_000))
        draft.arrive(draft.next_arrival(), "", draft.between((64, 512)), draft.fresh(length))


def _one_system_prompt(draft: Draft) -> None:
    system = draft.fresh(2_048)
    while draft.is_short:
        own = draft.fresh(draft.between((100, 1_500)))
        draft.arrive(draft.next_arrival(), "", draft.between((64, 512)), system, own)


def _few_long(draft: Draft) -> None:
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


def _sibling_bursts(draft: Draft) -> None:
    while draft.is_short:
        at_ns, shared = draft.next_arrival(), draft.fresh(draft.between((4_000, 8_000)))
        for _ in range(SIBLINGS):
            draft.arrive(at_ns, "", draft.between((128, 256)), shared, draft.fresh(draft.between((32, 200))))


@attrs.frozen
class Workload:
    make: Callable[[Draft], None]
    arrival: str
    """What a rate counts."""
    about: str
    requests: int = 3_000
    """Of the usual size."""
    in_flight_max: int | None = None


NO_RATE = "nothing"
"""What a rate counts where a bound in flight, or one moment, decides when requests come."""
WORKLOADS: dict[str, Workload] = {
    "agent-sessions": Workload(_agent_sessions, "sessions", "sessions of 12 turns, closed loop"),
    "hot-session-skew": Workload(_hot_session_skew, "requests", "64 contexts, a few of which are asked about most"),
    "long-decode": Workload(_long_decode, "requests", "short prompts, answers of up to 2,560 tokens"),
    "single-turn": Workload(_single_turn, "requests", "nothing shared"),
    "one-system-prompt": Workload(_one_system_prompt, "requests", "one beginning for all"),
    "few-long": Workload(_few_long, "requests", "few long contexts among many short ones"),
    "sibling-bursts": Workload(_sibling_bursts, "bursts", "16 at once with a common beginning"),
    "shared-prefix-x1": Workload(study_workloads.shared_prefix_x1, NO_RATE, "16 recurring groups, short", 192, 16),
    "shared-prefix-x3": Workload(study_workloads.shared_prefix_x3, NO_RATE, "16 recurring groups, longer", 192, 16),
    "shared-prefix-x5": Workload(study_workloads.shared_prefix_x5, NO_RATE, "16 recurring groups, long", 192, 16),
    "load-skew": Workload(study_workloads.load_skew, NO_RATE, "three long prefixes and many at once", 192, 96),
    "memory-skew": Workload(study_workloads.memory_skew, NO_RATE, "sessions, pressure, sessions again", 72, 48),
    "high-concurrency": Workload(_high_concurrency, NO_RATE, "agent sessions that all begin at once", 768),
    "multi-round-chat": Workload(study_workloads.multi_round_chat, "users", "users with one system prompt", 240),
    "long-doc-qa": Workload(study_workloads.long_doc_qa, NO_RATE, "documents asked about, shuffled", 40, 4),
    "long-doc-qa-tiled": Workload(study_workloads.long_doc_qa_tiled, NO_RATE, "documents in turn", 40, 4),
    "hot-session-skew-2": Workload(partial(_hot_session_skew, skew=2.0), "requests", "one of them more than half", 600),
    "hot-session-skew-3": Workload(partial(_hot_session_skew, skew=3.0), "requests", "one of them nearly always", 600),
}


def make_workload(name: str, requests: int | None, rate: float, seed: int) -> Trace:
    """At least so many requests, or as many as are usual; `rate` arrivals a second. Raises TraceError."""
    workload = WORKLOADS.get(name)
    if workload is None:
        raise TraceError(f"no workload is named {name!r}; there is {', '.join(WORKLOADS)}")
    draft = Draft(requests or workload.requests, seed)
    workload.make(draft)
    made = Trace(WORKLOAD + name, None, tuple(draft.requests), workload.in_flight_max)
    return at_speed(in_order(made), rate)
