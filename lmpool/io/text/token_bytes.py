"""What bytes a token stands for, and text from tokens one at a time.

A full decode is the concatenation of the tokens' bytes, read as UTF-8 with replacement. Decoding token by token
therefore costs the same for every token, and a character spread over several tokens appears once it is complete.
"""

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
SPACE_MARK = "▁"
"""Stands for a space in vocabularies of the SentencePiece family."""


class DecoderError(Exception):
    """The tokenizer joins its tokens in a way that is not bytes after bytes."""


def byte_level_characters() -> dict[str, int]:
    """Character to byte of a byte-level vocabulary (the table of GPT-2's encoder)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


_CHARACTER_BYTES = byte_level_characters()


def _byte_level(token: str) -> bytes:
    if all(character in _CHARACTER_BYTES for character in token):
        return bytes(_CHARACTER_BYTES[character] for character in token)
    return token.encode()


def _space_marked(token: str) -> bytes:
    byte = BYTE_TOKEN.fullmatch(token)
    return bytes((int(byte[1], 16),)) if byte else token.replace(SPACE_MARK, " ").encode()


def byte_rule(decoder: Mapping[str, Any] | None) -> Callable[[str], bytes]:
    """Token to bytes, from the `decoder` of tokenizer.json. Raises DecoderError.

    A decoder that strips a space does so at the begin of a text; what a model writes continues a text.
    """
    steps: Sequence[Mapping[str, Any]] = () if decoder is None else decoder.get("decoders", [decoder])
    kinds = [step["type"] for step in steps]
    if kinds and set(kinds) <= {"ByteLevel", "Fuse"}:
        return _byte_level
    marks = [step for step in steps if step["type"] == "Replace"]
    replaces_mark = all(step["pattern"] == {"String": SPACE_MARK} and step["content"] == " " for step in marks)
    if kinds and replaces_mark and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        return _space_marked
    raise DecoderError(f"decoder {'+'.join(kinds) or 'none'} in tokenizer.json")


class TextStream:
    """The text of one choice, token by token. Concatenated pieces equal a decode of all tokens at once."""

    __slots__ = ("_text_bytes", "_utf8")

    def __init__(self, text_bytes: Callable[[int], bytes]) -> None:
        """`text_bytes`: token id to its bytes, none for special tokens."""
        self._text_bytes = text_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The characters that this token completes; an unfinished character is kept back."""
        return self._utf8.decode(self._text_bytes(token))

    def flush(self) -> str:
        """The text ends here: an unfinished character becomes U+FFFD, as in a full decode."""
        return self._utf8.decode(b"", final=True)
