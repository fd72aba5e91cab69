"""OpenAI's own client against the server, on a real socket."""

from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from lmpool.io.errors import Busy, DeadlinePassed, GenerationFailed, NoReplica
from lmpool.io.http.keys import Client, Keys
from tests.io.http.scripted import ScriptedService, application
from tests.io.http.sockets import serving

pytestmark = pytest.mark.anyio


@pytest.fixture
def service() -> ScriptedService:
    return ScriptedService()


@pytest.fixture
async def client(tmp_path: Path, service: ScriptedService) -> AsyncIterator[openai.AsyncOpenAI]:
    keys = Keys({b"sk-1": Client("red", is_admin=False)})
    async with (
        serving(application(tmp_path, service, keys=keys)) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-1", max_retries=0) as client,
    ):
        yield client


async def test_models_are_listed(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["tiny", "/models/tiny"]
    assert (await client.models.retrieve("tiny")).owned_by == "lmpool"


async def test_a_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], n=2, logprobs=True, top_logprobs=2, stop=["END"]
    )
    assert [choice.message.content for choice in answer.choices] == ["Hello world"] * 2
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 2
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert answer.choices[0].logprobs.content[0].bytes == list(b"Hello")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


async def test_a_chat_stream_with_counts(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello world"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3


async def test_the_clients_own_stream_helper(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model="tiny", messages=[{"role": "user", "content": "hi"}], logprobs=True
    ) as stream:
        answer = await stream.get_final_completion()
    assert answer.choices[0].message.content == "Hello world"


async def test_a_completion_and_its_stream(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="tiny", prompt=["a", "b"], logprobs=1)
    assert [choice.text for choice in answer.choices] == ["Hello world"] * 2
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.text_offset == [0, 5, 6]
    stream = await client.completions.create(model="tiny", prompt="a", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello world"


async def test_errors_are_typed(client: openai.AsyncOpenAI, service: ScriptedService) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await client.completions.create(model="tiny", prompt="a", n=0)
    assert bad.value.param == "n"
    with pytest.raises(openai.NotFoundError) as absent:
        await client.completions.create(model="other", prompt="a")
    assert absent.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="sk-2").completions.create(model="tiny", prompt="a")
    service.error = Busy("busy", 1.0)
    with pytest.raises(openai.RateLimitError):
        await client.completions.create(model="tiny", prompt="a")
    service.error = NoReplica("none")
    with pytest.raises(openai.InternalServerError):
        await client.completions.create(model="tiny", prompt="a")


async def test_a_deadline_is_not_tried_again(client: openai.AsyncOpenAI, service: ScriptedService) -> None:
    service.error = DeadlinePassed("late")
    with pytest.raises(openai.APIStatusError) as late:
        await client.with_options(max_retries=5).completions.create(model="tiny", prompt="a")
    assert late.value.status_code == 408
    assert len(service.requests) == 1


async def test_b09_an_error_in_mid_stream_is_raised(client: openai.AsyncOpenAI, service: ScriptedService) -> None:
    service.error, service.error_at = GenerationFailed("gone"), 2
    stream = await client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], stream=True
    )
    assert [(await anext(stream)).choices[0].delta.content for _ in range(3)] == ["", "Hello", " "]
    with pytest.raises(openai.APIError, match="gone"):
        await anext(stream)
