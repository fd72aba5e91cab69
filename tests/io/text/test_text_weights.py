"""The bundled model's tokenizer and template against transformers."""

from pathlib import Path
from typing import Any

import pytest

from lmpool.io.supervision.machine import usual_cache_folder
from lmpool.io.text.model_text import ModelText

pytestmark = [pytest.mark.weights, pytest.mark.timeout(600)]

CHATS = (
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<&> 🦊é中\n\n  x"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": " b " * 2000},
    ],
)


@pytest.fixture(scope="module")
def folder() -> Path:
    from lmpool.gpu.source import prepare  # noqa: PLC0415 (imports torch, which other tests need not pay)

    return prepare(None, usual_cache_folder({}), lambda line: None)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize("chat", CHATS)
async def test_chats_have_the_tokens_that_transformers_gives_them(folder: Path, chat: list[dict[str, str]]) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415 (two seconds that other tests need not pay)

    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ours = ModelText(folder)
    expected: Any = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert await ours.encode_chat(chat, add_generation_prompt=True) == expected
    content = chat[-1]["content"]
    assert await ours.encode(content, add_special_tokens=True) == theirs(content)["input_ids"]
    stream = ours.stream()
    pieces = [stream.feed(token) for token in expected]
    assert "".join(pieces) + stream.flush() == theirs.decode(expected, skip_special_tokens=True)
    assert ours.decode(expected) == theirs.decode(expected)
    ours.close()
