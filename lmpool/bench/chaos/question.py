"""What the clients of a chaos ask, and in which manner: all of it drawn from a seed."""

from collections.abc import Mapping
from enum import Enum
from random import Random

import attrs

WORDS = (
    *("the", "keeper", "counts", "ships", "and", "writes", "names", "into", "a", "thick", "book", "while", "gulls"),
    *("sleep", "on", "roofs", "of", "old", "houses", "nobody", "asks", "why", "lamps", "turn", "before", "a", "storm"),
)
SHARED_CHARACTERS = (0, 48, 200, 480, 900)
"""Of the beginnings that questions have in common."""
OWN_CHARACTERS = (8, 240)
STOPS = ("e", "Q", "7", "a")
"""One byte of text each, that a model of random bytes comes to say."""
SAMPLED = 0.5
"""Share of questions with a temperature; the others are greedy."""


class Form(Enum):
    CHAT = "chat"
    COMPLETION = "completion"


@attrs.frozen
class Question:
    """The answer depends on nothing but this."""

    number: int
    form: Form
    fields: Mapping[str, object]
    """Of the body, without what says how it is sent."""
    refusal: str | None
    """The code with which it has to be refused; None if it has an answer."""

    @property
    def choices(self) -> int:
        choices = self.fields.get("n", 1)
        assert isinstance(choices, int)
        return choices

    @property
    def is_greedy(self) -> bool:
        return self.fields["temperature"] == 0.0


@attrs.frozen
class Manner:
    """How it is asked this time; none of it may change the answer."""

    is_stream: bool
    wants_usage: bool
    salt: str | None
    """A name of its own keeps its prefix from being found."""
    session: str | None
    priority: int
    deadline_ms: int | None
    leaves_after_s: float | None
    """The client goes away then."""
    read_pause_s: float
    """After each event of a stream."""


PLAIN = Manner(
    is_stream=False,
    wants_usage=True,
    salt=None,
    session=None,
    priority=0,
    deadline_ms=None,
    leaves_after_s=None,
    read_pause_s=0.0,
)


def draw_questions(count: int, seed: int, *, with_chat: bool, with_rivals: bool) -> tuple[Question, ...]:
    """`with_rivals`: greedy answers come with the two best of each token."""
    random = Random(f"questions {seed}")
    beginnings = [_text(random, length) for length in SHARED_CHARACTERS]
    drawn = [_question(number, random, beginnings, with_chat=with_chat) for number in range(count)]
    return tuple(_with_rivals(question) if with_rivals and question.is_greedy else question for question in drawn)


def _with_rivals(question: Question) -> Question:
    wanted = {"logprobs": True, "top_logprobs": 2} if question.form is Form.CHAT else {"logprobs": 2}
    return attrs.evolve(question, fields={**question.fields, **wanted})


def _question(number: int, random: Random, beginnings: list[str], *, with_chat: bool) -> Question:
    form = Form.CHAT if with_chat and random.random() < 0.5 else Form.COMPLETION
    beginning, own = random.choice(beginnings), _text(random, random.randint(*OWN_CHARACTERS))
    fields: dict[str, object] = {"max_tokens": random.choice((4, 16, 16, 40, 80, 160)), "temperature": 0.0}
    if random.random() < SAMPLED:
        fields |= {"temperature": round(random.uniform(0.5, 1.5), 2), "seed": random.randrange(1 << 31)}
        fields |= {"top_p": round(random.uniform(0.7, 1.0), 2)} if random.random() < 0.5 else {}
        fields |= {"n": random.choice((2, 3, 4))} if random.random() < 0.3 else {}
    if random.random() < 0.2:
        fields |= {"presence_penalty": 0.7, "frequency_penalty": 0.3}
    if random.random() < 0.25:
        fields["stop"] = random.sample(STOPS, random.choice((1, 2)))
    wants_logprobs = random.random() < 0.25
    if form is Form.CHAT:
        system = [{"role": "system", "content": beginning}] if beginning else []
        fields["messages"] = [*system, {"role": "user", "content": own}]
        fields |= {"logprobs": True, "top_logprobs": random.choice((0, 2))} if wants_logprobs else {}
    else:
        fields["prompt"] = f"{beginning} {own}"
        fields |= {"logprobs": random.choice((0, 2))} if wants_logprobs else {}
        fields |= {"echo": True} if random.random() < 0.1 else {}
    return Question(number, form, fields, None)


def nonsense(first: int) -> tuple[Question, ...]:
    """What no server should try, numbered from `first`."""
    wrong: tuple[tuple[Mapping[str, object], str], ...] = (
        ({"n": 0}, "invalid_value"),
        ({"temperature": "hot"}, "invalid_type"),
        ({"logit_bias": {"99999999": 1}}, "invalid_value"),
        ({"prompt": []}, "invalid_value"),
    )
    return tuple(
        Question(number, Form.COMPLETION, {"prompt": "tell me", "max_tokens": 4, "temperature": 1.0, **fields}, code)
        for number, (fields, code) in enumerate(wrong, first)
    )


def draw_manner(random: Random) -> Manner:
    is_stream = random.random() < 0.7
    is_slow = is_stream and random.random() < 0.08
    return Manner(
        is_stream=is_stream,
        wants_usage=random.random() < 0.5,
        salt=f"salt {random.getrandbits(64):x}" if random.random() < 0.5 else None,
        session=f"session {random.randrange(8)}" if random.random() < 0.3 else None,
        priority=random.choice((-1, 0, 0, 0, 1, 4)),
        deadline_ms=random.randint(200, 6000) if random.random() < 0.06 else None,
        leaves_after_s=random.uniform(0.01, 1.5) if random.random() < 0.12 else None,
        read_pause_s=random.uniform(0.02, 0.15) if is_slow else 0.0,
    )


def _text(random: Random, characters: int) -> str:
    text = ""
    while len(text) < characters:
        text += random.choice(WORDS) + " "
    return text[:characters].strip()
