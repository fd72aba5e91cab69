"""Tokens of texts and texts of tokens, for clients that count or cut prompts."""

from starlette.requests import Request
from starlette.responses import Response

from lmpool.io.http.connection import read_object
from lmpool.io.http.errors import ApiError, Code
from lmpool.io.http.fields import Body, Field, check_length, missing
from lmpool.io.http.inspection import json_response
from lmpool.io.http.prompts import read_messages, require_template
from lmpool.io.http.schema import DETOKENIZE_FIELDS, TOKENIZE_FIELDS
from lmpool.io.http.service import Context, served_name
from lmpool.io.text.template import ChatError


class Tokens:
    def __init__(self, context: Context) -> None:
        self._context = context

    async def tokenize(self, request: Request) -> Response:
        body = await self._read(request, TOKENIZE_FIELDS)
        tokens = await self._encode(body)
        document: dict[str, object] = {
            "tokens": tokens,
            "count": len(tokens),
            "max_model_len": self._context.service.tokens_max,
        }
        if body.flag("return_token_strs"):
            document["token_strs"] = [self._context.text.token_text(token) for token in tokens]
        return json_response(document)

    async def detokenize(self, request: Request) -> Response:
        body = await self._read(request, DETOKENIZE_FIELDS)
        if not body.has("tokens"):
            missing("tokens", body.field("tokens").kind)
        tokens = body.tokens("tokens", self._context.text.facts.vocabulary)
        return json_response({"prompt": self._context.text.decode(tokens)})

    async def _read(self, request: Request, fields: tuple[Field, ...]) -> Body:
        content = await read_object(request.headers, request.receive, self._context.body_bytes_max)
        body = Body(content, fields)
        served_name(self._context, body.text("model"))
        return body

    async def _encode(self, body: Body) -> list[int]:
        text = self._context.text
        prompt = body.text("prompt")
        if prompt is not None:
            if body.has("messages"):
                raise ApiError(Code.INVALID_VALUE, "Either prompt or messages, not both.", "messages")
            return await text.encode(prompt, add_special_tokens=body.flag("add_special_tokens", default=True))
        if not body.has("messages"):
            missing("prompt", body.field("prompt").kind)
        require_template(text.facts)
        messages = read_messages(body)
        characters = sum(len(message["content"]) for message in messages)
        check_length(body.field("prompt"), characters, "messages", "characters")
        try:
            begins_answer = body.flag("add_generation_prompt", default=True)
            return await text.encode_chat(messages, add_generation_prompt=begins_answer)
        except ChatError as error:
            raise ApiError(Code.INVALID_VALUE, f"The chat template refuses: {error}", "messages") from error
