"""What a request asks about: prompts of completions, and messages of a chat."""

from typing import Any

from lmpool.io.http.errors import ApiError, Code
from lmpool.io.http.fields import (
    Body,
    Kind,
    check_length,
    checked_tokens,
    described,
    missing,
    quoted,
    wrong_type,
    wrong_value,
)
from lmpool.io.text.model_text import ModelFacts

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Role of the API to role in the chat template: templates know no developer."""

TOOL_ROLES = ("tool", "function")
MESSAGE_TOOL_FIELDS = ("tool_calls", "function_call")

Prompt = str | tuple[int, ...]


def read_prompts(body: Body, vocabulary: int) -> tuple[Prompt, ...]:
    """One prompt or several, each a text or token ids, none of them empty. Raises ApiError."""
    field, value = body.field("prompt"), body.raw("prompt")
    if value is None:
        missing("prompt", field.kind)
    if isinstance(value, str):
        return (_checked_text(value, "prompt"),)
    if not isinstance(value, list):
        wrong_type("prompt", field.kind, value)
    if not value:
        wrong_value("prompt", "is empty: at least one token is needed")
    if type(value[0]) is int:
        return (checked_tokens(value, "prompt", vocabulary),)
    check_length(field, len(value), "prompt", "prompts")
    return tuple(_read_prompt(item, f"prompt[{index}]", vocabulary) for index, item in enumerate(value))


def read_text_or_tokens(body: Body, name: str, vocabulary: int) -> str | tuple[int, ...]:
    """One prompt that is there. Raises ApiError."""
    return _read_prompt(body.raw(name), name, vocabulary)


def _read_prompt(value: Any, path: str, vocabulary: int) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return _checked_text(value, path)
    if not isinstance(value, list):
        wrong_type(path, Kind.TEXT_OR_TOKENS, value)
    if not value:
        wrong_value(path, "is empty: at least one token is needed")
    return checked_tokens(value, path, vocabulary)


def _checked_text(value: str, path: str) -> str:
    if not value:
        wrong_value(path, "is empty: at least one token is needed")
    return value


def require_template(facts: ModelFacts) -> None:
    """Raises ApiError where the model cannot chat."""
    if not facts.has_template:
        text = (
            "This model has no chat template (no chat_template.jinja in its folder, none in tokenizer_config.json), "
            "so it cannot chat: use /v1/completions."
        )
        raise ApiError(Code.NO_CHAT_TEMPLATE, text, "messages")


def read_messages(body: Body) -> tuple[dict[str, str], ...]:
    """Messages with `role` and `content` alone, as templates take them. Raises ApiError."""
    field, value = body.field("messages"), body.raw("messages")
    if value is None:
        missing("messages", field.kind)
    if not isinstance(value, list):
        wrong_type("messages", field.kind, value)
    check_length(field, len(value), "messages", "messages")
    return tuple(_read_message(message, f"messages[{index}]") for index, message in enumerate(value))


def _read_message(message: Any, path: str) -> dict[str, str]:
    if not isinstance(message, dict):
        wrong_type(path, Kind.OBJECT, message)
    role = message.get("role")
    if role is None:
        missing(f"{path}.role", Kind.TEXT)
    if not isinstance(role, str):
        wrong_type(f"{path}.role", Kind.TEXT, role)
    if role in TOOL_ROLES:
        raise ApiError(Code.UNSUPPORTED_FIELD, f"{path}: this server has no tools.", f"{path}.role")
    if role not in ROLES:
        wrong_value(f"{path}.role", f"must be one of {', '.join(ROLES)}, not {quoted(role)}")
    for name in MESSAGE_TOOL_FIELDS:
        if message.get(name) not in (None, []):
            raise ApiError(Code.UNSUPPORTED_FIELD, f"{path}.{name}: this server has no tools.", f"{path}.{name}")
    return {"role": ROLES[role], "content": _read_content(message.get("content"), role, f"{path}.content")}


def _read_content(content: Any, role: str, path: str) -> str:
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if content is None:
        missing(path, Kind.CONTENT)
    if not isinstance(content, list):
        wrong_type(path, Kind.CONTENT, content)
    return "\n".join(_read_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _read_part(part: Any, path: str) -> str:
    if not isinstance(part, dict):
        wrong_type(path, Kind.OBJECT, part)
    kind = part.get("type")
    if kind != "text":
        shown = quoted(kind) if isinstance(kind, str) else described(kind)
        message = f"{path}: this server reads parts of type 'text' only, not {shown}."
        raise ApiError(Code.UNSUPPORTED_FIELD, message, f"{path}.type")
    text = part.get("text")
    if text is None:
        missing(f"{path}.text", Kind.TEXT)
    if not isinstance(text, str):
        wrong_type(f"{path}.text", Kind.TEXT, text)
    return text
