"""Chat templates as model folders carry them: Jinja in a sandbox, with what such templates expect to find."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from typing_extensions import override

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatError(Exception):
    """The template does not take these messages; the text says why, in the template's own words."""


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is only a bracket around them."""

    tags = {"generation"}  # noqa: RUF012 (declared so by jinja2)

    @override
    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise ChatError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _tojson(value: object, ensure_ascii: bool = False, **options: Any) -> str:  # noqa: FBT001, FBT002
    """Unlike Jinja's own filter this one does not escape for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


class ChatTemplate:
    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises jinja2.TemplateSyntaxError for a template that does not parse."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._template = environment.from_string(source)
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str:
        """Raises ChatError."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise ChatError(str(error)) from error


def load_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> ChatTemplate | None:
    """From `chat_template.jinja`, else from tokenizer_config's `chat_template` (of several, the one named default)."""
    path = folder / "chat_template.jinja"
    source: Any = path.read_text() if path.exists() else tokenizer_config.get("chat_template")
    if isinstance(source, list):
        source = next((entry["template"] for entry in source if entry["name"] == "default"), None)
    return None if source is None else ChatTemplate(source, special_tokens(tokenizer_config))


def special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Name to text of the special tokens that tokenizer_config declares."""
    declared = {name: tokenizer_config.get(name) for name in SPECIAL_TOKENS}
    texts = {name: token["content"] if isinstance(token, dict) else token for name, token in declared.items()}
    return {name: text for name, text in texts.items() if text is not None}
