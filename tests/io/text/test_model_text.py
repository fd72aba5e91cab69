"""Tokens and text of a tiny byte-level model folder."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from lmpool.io.text.model_text import FolderError, ModelText
from lmpool.io.text.template import ChatError, ChatTemplate
from lmpool.io.text.token_bytes import DecoderError, TextStream, byte_rule
from tests.model_folder import IM_END, IM_START, tiny_tokenizer, tiny_vocabulary, write_tiny_folder

TOKENIZER = Tokenizer.from_str(json.dumps(tiny_tokenizer()))
VOCABULARY = tiny_vocabulary()
NAMES = list(VOCABULARY)
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def text(tmp_path: Path) -> Iterator[ModelText]:
    model = ModelText(write_tiny_folder(tmp_path / "model"))
    yield model
    model.close()


def pieces_of(text: ModelText, tokens: list[int]) -> list[str]:
    stream = text.stream()
    return [*(stream.feed(token) for token in tokens), stream.flush()]


def test_facts_come_from_the_folder(text: ModelText) -> None:
    assert text.facts.vocabulary == len(VOCABULARY)
    assert text.facts.model_tokens_max == 4096
    assert text.facts.ends == (VOCABULARY[IM_END], VOCABULARY["<|endoftext|>"])
    assert text.facts.has_template


async def encode(text: ModelText, string: str) -> list[int]:
    return await text.encode(string, add_special_tokens=True)


@pytest.mark.anyio
async def test_long_texts_are_encoded_like_short_ones(text: ModelText) -> None:
    short = await encode(text, "hello world.\n")
    assert await encode(text, "hello world.\n" * 1000) == short * 1000


@pytest.mark.anyio
async def test_while_a_long_text_is_encoded_everything_else_goes_on(text: ModelText) -> None:
    encoding = asyncio.create_task(encode(text, "hello world.\n" * 100_000))
    turns = 0
    while not encoding.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(await encoding) > 100_000
    assert turns > 1000, "the event loop stood still: the interpreter lock was held"


def test_no_token_stands_for_more_characters(text: ModelText) -> None:
    assert text.token_characters_max == max(map(len, NAMES))


@pytest.mark.anyio
async def test_a_chat_is_rendered_and_encoded(text: ModelText) -> None:
    tokens = await text.encode_chat([{"role": "user", "content": "hello"}], add_generation_prompt=True)
    assert text.decode(tokens) == f"{IM_START}user\nhello{IM_END}\n{IM_START}assistant\n"
    assert tokens[0] == VOCABULARY[IM_START]


def test_b04_a_character_over_several_tokens_appears_whole(text: ModelText) -> None:
    pieces = pieces_of(text, list("ok🦊é中!".encode()))
    assert pieces == ["o", "k", "", "", "", "🦊", "", "é", "", "", "中", "!", ""]


def test_b04_a_character_cut_by_the_end_ends_as_in_a_full_decode(text: ModelText) -> None:
    tokens = list("ok🦊".encode()[:-1])
    assert "".join(pieces_of(text, tokens)) == TOKENIZER.decode(tokens) == "ok" + REPLACEMENT


def test_special_tokens_have_no_text_in_an_answer(text: ModelText) -> None:
    tokens = [VOCABULARY["hello"], VOCABULARY[IM_END], VOCABULARY["Ġw"]]
    assert "".join(pieces_of(text, tokens)) == "hello w"
    assert text.decode(tokens) == f"hello{IM_END} w"


def test_token_ids_beyond_the_tokenizer_have_no_text(text: ModelText) -> None:
    assert pieces_of(text, [100_000]) == ["", ""]
    assert text.token_text(100_000) == ""


def test_a_token_that_is_no_character_is_named_by_its_bytes(text: ModelText) -> None:
    assert text.token_text(0xF0) == "bytes:\\xf0"
    assert text.token_text(VOCABULARY["hello"]) == "hello"
    assert text.token_text(VOCABULARY[IM_END]) == IM_END


@given(tokens=st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=30))
def test_pieces_equal_a_full_decode(tokens: list[int]) -> None:
    rule = byte_rule({"type": "ByteLevel"})
    special = {number for number, token in TOKENIZER.get_added_tokens_decoder().items() if token.special}
    stream = TextStream(lambda token: b"" if token in special else rule(NAMES[token]))
    pieces = [*(stream.feed(token) for token in tokens), stream.flush()]
    assert "".join(pieces) == TOKENIZER.decode(tokens, skip_special_tokens=True)


@given(string=st.text(max_size=60))
def test_every_text_survives_its_tokens(string: str) -> None:
    rule = byte_rule({"type": "ByteLevel"})
    stream = TextStream(lambda token: rule(NAMES[token]))
    tokens = TOKENIZER.encode(string).ids
    assert "".join([*(stream.feed(token) for token in tokens), stream.flush()]) == string


SPACE_MARKED = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def test_vocabularies_with_space_marks_and_byte_tokens() -> None:
    rule = byte_rule(SPACE_MARKED)
    names = ["▁Paris", "<0xF0>", "<0x9F>", "<0xA6>", "<0x8A>", "▁is"]
    stream = TextStream(lambda token: rule(names[token]))
    assert [stream.feed(token) for token in range(6)] == [" Paris", "", "", "", "🦊", " is"]


def test_an_unknown_decoder_is_refused() -> None:
    with pytest.raises(DecoderError, match="WordPiece"):
        byte_rule({"type": "WordPiece"})
    with pytest.raises(DecoderError, match="none"):
        byte_rule(None)


def render(source: str, **messages: str) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>"})
    return template.render(
        [{"role": role, "content": words} for role, words in messages.items()], add_generation_prompt=True
    )


def test_templates_find_what_they_expect() -> None:
    assert render("{{ bos_token }}{% for m in messages %}\n  {% continue %}\n{% endfor %}") == "<s>"
    assert render("{{ messages | tojson }}", user="<&ä>") == '[{"role": "user", "content": "<&ä>"}]'
    assert render("{% generation %}x{{ messages[0].content }}{% endgeneration %}", user="y") == "xy"
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}") == "2"


def test_a_template_refuses_in_its_own_words() -> None:
    with pytest.raises(ChatError, match="must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_templates_run_in_a_sandbox() -> None:
    with pytest.raises(ChatError, match="unsafe"):
        render("{{ messages.__class__.__mro__ }}", user="x")
    with pytest.raises(ChatError):
        render("{{ messages.append(1) }}", user="x")


def test_a_template_may_stand_in_the_tokenizer_configuration(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path, template=None)
    assert not ModelText(folder).facts.has_template
    path = folder / "tokenizer_config.json"
    declared = json.loads(path.read_text())
    path.write_text(json.dumps(declared | {"chat_template": [{"name": "default", "template": "x"}]}))
    assert ModelText(folder).facts.has_template


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(FolderError, match=r"tokenizer\.json"):
        ModelText(folder)
