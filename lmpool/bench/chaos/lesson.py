"""The answers of a server that nothing disturbs yet: what all later ones are held against."""

import asyncio
from collections.abc import Sequence
from typing import Any

import attrs
import httpx
import openai
from tqdm import tqdm

from lmpool.bench.chaos.answer import Answer
from lmpool.bench.chaos.client import ChaosClient
from lmpool.bench.chaos.question import PLAIN, Form, Question
from lmpool.bench.chaos.reference import reference_differences
from lmpool.bench.chaos.server import ServerError
from lmpool.bench.chaos.tally import Fate

LEARNERS = 8
"""Requests at a time."""
NO_ANSWER = Answer((), None, None)
"""To what has to be refused."""


@attrs.frozen
class Known:
    """A question with its answer undisturbed."""

    question: Question
    answer: Answer


class Lesson:
    def __init__(self, client: ChaosClient, url: str, *, is_integer: bool) -> None:
        self._client = client
        self._url = url
        self._is_integer = is_integer
        self._turns = asyncio.Semaphore(LEARNERS)

    async def learn(self, questions: Sequence[Question], progress: "tqdm[Any]") -> list[Known]:
        """Every question is asked whole and as a stream. Raises ServerError if an answer is not what it should be."""

        async def one(question: Question) -> Known:
            async with self._turns:
                try:
                    known = await self._learn(question)
                except openai.OpenAIError as error:
                    raise ServerError(f"undisturbed, question {question.number} has no answer: {error!r}") from error
            progress.update()
            return known

        return await asyncio.gather(*(one(question) for question in questions))

    async def _learn(self, question: Question) -> Known:
        if question.refusal is not None:
            ask = await self._client.ask(question, PLAIN, NO_ANSWER)
            found = [] if ask.fate is Fate.REFUSED else [f"{ask.fate.value}: {ask.detail}"]
            answer = NO_ANSWER
        else:
            answer = await self._client.answer(question, PLAIN)
            stream = await self._client.answer(question, attrs.evolve(PLAIN, is_stream=True))
            found = self._client.faults(question, stream, answer)
            if self._is_integer:
                found += reference_differences(question, await self._tokens(question), answer)
        if found:
            raise ServerError(f"undisturbed, question {question.number} {question.fields}: {'; '.join(found)}")
        return Known(question, answer)

    async def _tokens(self, question: Question) -> Sequence[int]:
        """Of the prompt, as the server itself tells them."""
        name = "messages" if question.form is Form.CHAT else "prompt"
        async with httpx.AsyncClient() as client:
            answer = await client.post(self._url + "/tokenize", json={name: question.fields[name]})
        tokens: Sequence[int] = answer.json()["tokens"]
        return tokens
