"""Workloads of published studies, in their sizes. `specs/workloads.md` has the definitions."""

from collections.abc import Iterable

from lmpool.sim.draft import Draft
from lmpool.sim.trace import Part

REPEAT_TOKENS = 117
"""Of the paragraph that the study of shared prefixes repeats."""
HEADER_TOKENS = 17
QUESTIONS = (12, 13, 14, 14, 15, 15, 16, 16, 17, 17, 17, 18, 19, 20, 21, 22)
"""Lengths of its fixed questions: with them prompt tokens are its own, in sum and at most."""
GROUPS = 16


def _repeated(draft: Draft, repeats: int) -> Part:
    return draft.fresh(HEADER_TOKENS + REPEAT_TOKENS * repeats)


def _questions(draft: Draft) -> list[Part]:
    return [draft.fresh(tokens) for tokens in QUESTIONS]


def _shared_prefix(draft: Draft, repeats: int) -> None:
    questions = _questions(draft)
    groups = [_repeated(draft, repeats) for _ in range(GROUPS)]
    each = -(-draft.wanted // GROUPS)
    for number in draft.shuffled(range(GROUPS * each)):
        group = number // each
        draft.ask(0, f"group-{group}", 64, groups[group], questions[number % len(questions)])


def shared_prefix_x1(draft: Draft) -> None:
    _shared_prefix(draft, 16)


def shared_prefix_x3(draft: Draft) -> None:
    _shared_prefix(draft, 48)


def shared_prefix_x5(draft: Draft) -> None:
    _shared_prefix(draft, 80)


HOT_GROUPS = 3


def load_skew(draft: Draft) -> None:
    questions = _questions(draft)
    groups = [draft.fresh(HEADER_TOKENS + 1 + REPEAT_TOKENS * 64) for _ in range(HOT_GROUPS)]

    def ask(stage: int, numbers: Iterable[int]) -> None:
        for number in numbers:
            group = number % HOT_GROUPS
            draft.ask(stage, f"group-{group}", 8, groups[group], questions[number % len(questions)])

    ask(0, range(HOT_GROUPS))
    ask(1, draft.shuffled(range(HOT_GROUPS, max(draft.wanted, HOT_GROUPS + 1))))


SESSIONS, HOT_SESSIONS, HOT_SHARE = 6, 2, 0.8
ANCHOR_REPEATS, SESSION_REPEATS, PRESSURE_REPEATS = 24, 40, 24


def memory_skew(draft: Draft) -> None:
    """Sessions are planted; requests that share only their anchors press; the same sessions come again."""
    questions = _questions(draft)
    anchors = [_repeated(draft, ANCHOR_REPEATS) for _ in range(SESSIONS)]
    sessions = [(anchor, _repeated(draft, SESSION_REPEATS), questions[number]) for number, anchor in enumerate(anchors)]
    rest = max(draft.wanted - SESSIONS, 2)
    pressing = max(round(rest * 30 / 66), 1)
    for number, parts in enumerate(sessions):
        draft.ask(0, f"session-{number}", 16, *parts)
    hot = round(pressing * HOT_SHARE)
    chosen = [
        at % HOT_SESSIONS if at < hot else HOT_SESSIONS + at % (SESSIONS - HOT_SESSIONS) for at in range(pressing)
    ]
    for at, number in enumerate(draft.shuffled(chosen)):
        tail = _repeated(draft, PRESSURE_REPEATS)
        draft.ask(1, f"pressure-{at}", 16, anchors[number], tail, questions[at % len(questions)])
    for at in draft.shuffled(range(rest - pressing)):
        draft.ask(2, f"session-{at % SESSIONS}", 16, *sessions[at % SESSIONS])


ROUNDS = 6


def multi_round_chat(draft: Draft) -> None:
    """Users come one by one; each has a past of its own and asks on after reading the answer."""
    system = draft.fresh(1_024)
    while draft.is_short:
        name = f"user-{len(draft.requests) // ROUNDS}"
        past, question = draft.fresh(2_048), draft.fresh(draft.between((32, 128)))
        last = draft.arrive(draft.next_arrival(), name, 128, system, past, question)
        for _ in range(ROUNDS - 1):
            last = draft.follow(last, draft.pause(8.0, 40.0), 128, draft.fresh(draft.between((32, 128))))


DOCUMENT_TOKENS, ABOUT_EACH = 10_000, 5


def long_doc_qa(draft: Draft) -> None:
    documents = -(-draft.wanted // ABOUT_EACH)
    _about_documents(draft, documents, draft.shuffled(range(documents * ABOUT_EACH)))


def long_doc_qa_tiled(draft: Draft) -> None:
    documents = -(-draft.wanted // ABOUT_EACH)
    _about_documents(draft, documents, range(documents * ABOUT_EACH))


def _about_documents(draft: Draft, documents: int, order: Iterable[int]) -> None:
    contents = [draft.fresh(DOCUMENT_TOKENS) for _ in range(documents)]
    for number in order:
        place = number % documents
        draft.ask(0, f"document-{place}", 100, contents[place], draft.fresh(draft.between((32, 64))))
