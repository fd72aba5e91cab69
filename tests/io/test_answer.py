"""An answer from deliveries to chunks, with hand-made deliveries."""

import asyncio
from collections.abc import Iterator

import attrs
import pytest

from lmpool.core.effects import (
    ChoiceEnd,
    CloseRequest,
    DeliverPromptLogprobs,
    DeliverStart,
    DeliverToken,
    Outcome,
)
from lmpool.core.ids import SECOND, Epoch, Nanos, RequestId
from lmpool.core.plan import TokenLogprobs
from lmpool.io.answer import UNREAD_ALL_MAX, UNREAD_MAX, UNREAD_USUAL, Answer, UnreadTotal
from lmpool.io.errors import (
    BadRequest,
    Busy,
    DeadlinePassed,
    Draining,
    GenerationFailed,
    LMPoolError,
    NoReplica,
)
from lmpool.io.generation import Chunk, GenerationRequest, SamplingParams
from lmpool.io.text.model_text import ModelText
from tests.model_folder import write_tiny_folder

REQUEST = RequestId(Epoch(1), 1)
PROMPT = [104, 105]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelText]:
    model = ModelText(write_tiny_folder(tmp_path_factory.mktemp("model")))
    yield model
    model.close()


class Reader:
    """An answer, what it asked for meanwhile, and a way to say tokens as texts."""

    def __init__(self, text: ModelText, sampling: SamplingParams, total: UnreadTotal | None = None) -> None:
        self.stops: list[tuple[int, int]] = []
        self.abandoned = 0
        self._said = [0] * sampling.choices
        self.answer = Answer(
            REQUEST,
            GenerationRequest(prompt="hi", sampling=sampling),
            PROMPT,
            text,
            lambda choice, index: self.stops.append((choice, index)),
            self._abandon,
            total or UnreadTotal(),
        )

    def _abandon(self) -> None:
        self.abandoned += 1

    def say(self, data: bytes, *, choice: int = 0, end: ChoiceEnd | None = None) -> None:
        """One token a byte; `end` comes with the last."""
        for position, byte in enumerate(data):
            last = end if position == len(data) - 1 else None
            self.token(byte, choice=choice, end=last, logprobs=None, hidden=False)

    def token(
        self, token: int, *, choice: int, end: ChoiceEnd | None, logprobs: TokenLogprobs | None, hidden: bool
    ) -> None:
        index = self._said[choice]
        self._said[choice] += 1
        self.answer.take(DeliverToken(REQUEST, choice, index, token, logprobs, end, hidden))

    def close(self, outcome: Outcome) -> None:
        self.answer.take(CloseRequest(REQUEST, outcome, "why", Nanos(3 * SECOND)))

    async def chunks(self) -> list[Chunk]:
        """What can be read at once."""
        return await asyncio.wait_for(self.answer.next_chunks(), 1)


def plain(**fields: object) -> SamplingParams:
    return attrs.evolve(SamplingParams(), **fields)  # type: ignore[arg-type]


def test_what_was_not_read_comes_as_one_chunk_a_choice(text: ModelText) -> None:
    async def body() -> None:
        reader = Reader(text, plain(choices=2))
        reader.answer.take(DeliverStart(REQUEST, 16, Nanos(5)))
        reader.say(b"ab")
        reader.say(b"x", choice=1)
        reader.say(b"c", end=ChoiceEnd.LENGTH)
        first, second = await reader.chunks()
        assert (first.text, first.tokens, first.finish, first.completion_tokens) == ("abc", (97, 98, 99), "length", 3)
        assert (first.cached_tokens, first.prompt_tokens, first.queued_ns) == (16, 2, 5)
        assert (second.choice, second.text, second.finish) == (1, "x", None)
        reader.say(b"y", choice=1, end=ChoiceEnd.STOP)
        reader.close(Outcome.COMPLETE)
        (last,) = await reader.chunks()
        assert (last.text, last.finish, last.completion_tokens) == ("y", "stop", 2)
        assert await reader.chunks() == []

    asyncio.run(body())


def test_a_stop_string_ends_a_choice_though_nobody_reads(text: ModelText) -> None:
    async def body() -> None:
        reader = Reader(text, plain(stop=("bcd",)))
        reader.say(b"abcdef")
        assert reader.stops == [(0, 3)]
        reader.close(Outcome.COMPLETE)
        (chunk,) = await reader.chunks()
        assert (chunk.text, chunk.tokens, chunk.finish, chunk.completion_tokens) == ("a", (97, 98, 99, 100), "stop", 4)

    asyncio.run(body())


def test_b08_a_stop_string_on_the_last_token_is_no_length(text: ModelText) -> None:
    async def body() -> None:
        reader = Reader(text, plain(stop=("b",), includes_stop=True))
        reader.say(b"ab", end=ChoiceEnd.LENGTH)
        (chunk,) = await reader.chunks()
        assert (chunk.text, chunk.finish, reader.stops) == ("ab", "stop", [])

    asyncio.run(body())


def test_b03_what_is_held_back_arrives_at_the_end(text: ModelText) -> None:
    async def body() -> None:
        reader = Reader(text, plain(stop=("QQQQ",)))
        reader.say(b"aQQQ", end=ChoiceEnd.LENGTH)
        (chunk,) = await reader.chunks()
        assert (chunk.text, chunk.finish) == ("aQQQ", "length")

    asyncio.run(body())


def test_no_stop_string_counts_before_min_tokens(text: ModelText) -> None:
    async def body() -> None:
        reader = Reader(text, plain(stop=("a",), min_tokens=2))
        reader.say(b"aaa")
        assert reader.stops == [(0, 2)]
        (chunk,) = await reader.chunks()
        assert chunk.text == "aa"

    asyncio.run(body())


def test_a_hidden_end_counts_and_has_no_text(text: ModelText) -> None:
    async def body() -> None:
        reader = Reader(text, plain())
        reader.say(b"a")
        reader.token(98, choice=0, end=ChoiceEnd.STOP, logprobs=None, hidden=True)
        (chunk,) = await reader.chunks()
        assert (chunk.text, chunk.finish, chunk.completion_tokens) == ("a", "stop", 2)

    asyncio.run(body())


def test_b04_an_unfinished_character_ends_as_in_a_full_decode(text: ModelText) -> None:
    async def body() -> None:
        reader = Reader(text, plain())
        reader.say("é".encode()[:1], end=ChoiceEnd.LENGTH)
        (chunk,) = await reader.chunks()
        assert chunk.text == "\N{REPLACEMENT CHARACTER}"

    asyncio.run(body())


def test_b05_each_token_that_counts_is_scored(text: ModelText) -> None:
    async def body() -> None:
        reader = Reader(text, plain(logprobs=1, stop=("b",)))
        for token in b"abc":
            scores = TokenLogprobs(token, -0.5, (120,), (-0.25,))
            reader.token(token, choice=0, end=None, logprobs=scores, hidden=False)
        (chunk,) = await reader.chunks()
        assert [entry.chosen.text for entry in chunk.logprobs] == ["a", "b"]
        assert [(best.text, best.logprob) for best in chunk.logprobs[0].best] == [("x", -0.25)]

    asyncio.run(body())


def test_an_echo_waits_for_its_scores_and_comes_first(text: ModelText) -> None:
    async def body() -> None:
        reader = Reader(text, plain(choices=2, echo=True, logprobs=0))
        reader.answer.take(DeliverStart(REQUEST, 0, Nanos(0)))
        reader.token(97, choice=1, end=None, logprobs=TokenLogprobs(97, -1.0, (), ()), hidden=False)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.answer.next_chunks(), 0)
        reader.answer.take(DeliverPromptLogprobs(REQUEST, 1, (TokenLogprobs(105, -2.0, (), ()),)))
        first, second = await reader.chunks()
        assert (first.text, second.text) == ("hi", "hia")
        assert [entry.chosen.logprob for entry in second.logprobs] == [None, -2.0, -1.0]
        assert second.tokens == (97,)

    asyncio.run(body())


def test_only_scores(text: ModelText) -> None:
    async def body() -> None:
        reader = Reader(text, plain(echo=True, logprobs=0, max_tokens=0))
        reader.answer.take(DeliverPromptLogprobs(REQUEST, 1, (TokenLogprobs(105, -2.0, (), ()),)))
        reader.close(Outcome.COMPLETE)
        (chunk,) = await reader.chunks()
        assert (chunk.text, chunk.finish, chunk.completion_tokens) == ("hi", "length", 0)

    asyncio.run(body())


def test_what_nobody_reads_is_bounded(text: ModelText) -> None:
    async def body() -> None:
        reader = Reader(text, plain())
        reader.say(b"a" * (UNREAD_MAX + 10))
        assert reader.abandoned == 1
        with pytest.raises(GenerationFailed, match="did not read"):
            await reader.chunks()

    asyncio.run(body())


def test_what_many_leave_unread_is_bounded_for_all_together(text: ModelText) -> None:
    async def body() -> None:
        total = UnreadTotal()
        slow = [Reader(text, plain(), total) for _ in range(UNREAD_ALL_MAX // UNREAD_MAX)]
        for reader in slow:
            reader.say(b"a" * UNREAD_MAX)
        assert total.count == UNREAD_ALL_MAX
        quick, more = Reader(text, plain(), total), Reader(text, plain(), total)
        quick.say(b"a" * UNREAD_USUAL)
        more.say(b"a" * (UNREAD_USUAL + 1))
        assert [reader.abandoned for reader in (*slow, quick, more)] == [0] * (len(slow) + 1) + [1]
        assert len((await quick.chunks())[0].tokens) == UNREAD_USUAL
        for reader in slow:
            reader.answer.close()
        assert total.count == 0
        quick.say(b"a" * (UNREAD_USUAL + 1))
        assert quick.abandoned == 0

    asyncio.run(body())


def test_b09_what_came_before_an_error_is_read_first(text: ModelText) -> None:
    async def body() -> None:
        reader = Reader(text, plain())
        reader.say(b"abc")
        reader.close(Outcome.FAILED)
        (chunk,) = await reader.chunks()
        assert (chunk.text, chunk.finish) == ("abc", None)
        with pytest.raises(GenerationFailed):
            await reader.chunks()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome.BUSY, Busy),
        (Outcome.NEVER_FITS, BadRequest),
        (Outcome.NO_REPLICA, NoReplica),
        (Outcome.DEADLINE, DeadlinePassed),
        (Outcome.FAILED, GenerationFailed),
        (Outcome.DRAINING, Draining),
    ],
)
def test_each_bad_end_is_an_error_of_its_own(text: ModelText, outcome: Outcome, kind: type[LMPoolError]) -> None:
    async def body() -> None:
        reader = Reader(text, plain())
        reader.close(outcome)
        with pytest.raises(kind, match="why") as caught:
            await reader.chunks()
        if isinstance(caught.value, Busy):
            assert caught.value.retry_after_s == 3

    asyncio.run(body())
