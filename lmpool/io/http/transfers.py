"""An operator's order to copy or move a cached prompt from one replica to another."""

from starlette.requests import Request
from starlette.responses import Response

from lmpool.core.messages.transfer import TransferMode
from lmpool.core.prefix import HASH_BYTES
from lmpool.io.errors import LMPoolError
from lmpool.io.http.connection import read_object
from lmpool.io.http.errors import ApiError, Code
from lmpool.io.http.faults import api_error_of
from lmpool.io.http.fields import Body, Kind, missing, wrong_value
from lmpool.io.http.gate import caller_of, require_admin
from lmpool.io.http.inspection import json_response
from lmpool.io.http.pool import transfer_word
from lmpool.io.http.prompts import read_text_or_tokens
from lmpool.io.http.schema import TRANSFER_FIELDS
from lmpool.io.http.service import Context
from lmpool.io.transfer_order import TransferWish

COPY_S_DEFAULT = 30.0


class TransferOrders:
    def __init__(self, context: Context) -> None:
        self._context = context

    async def order(self, request: Request) -> Response:
        caller = caller_of(request.scope)
        require_admin(caller)
        content = await read_object(request.headers, request.receive, self._context.body_bytes_max)
        body = Body(content, TRANSFER_FIELDS)
        wish = self._wish(body, body.text("tenant") or caller.client.tenant)
        try:
            transfer = await self._context.service.transfer(wish)
        except LMPoolError as error:
            raise api_error_of(error) from error
        return json_response({"transfer": transfer_word(transfer)})

    def _wish(self, body: Body, tenant: str) -> TransferWish:
        if body.has("prompt") == body.has("chain"):
            raise ApiError(Code.INVALID_VALUE, "One of prompt and chain is needed, and not both.", "prompt")
        prompt = None
        if body.has("prompt"):
            prompt = read_text_or_tokens(body, "prompt", self._context.text.facts.vocabulary)
        return TransferWish(
            prompt=prompt,
            chain=_read_chain(body),
            tenant=tenant,
            cache_salt=body.text("cache_salt"),
            source=_required(body, "source"),
            target=_required(body, "target"),
            mode=_read_mode(body),
            copy_s=body.number("copy_seconds") or COPY_S_DEFAULT,
        )


def _required(body: Body, name: str) -> int:
    value = body.integer(name)
    if value is None:
        missing(name, Kind.INTEGER)
    return value


def _read_mode(body: Body) -> TransferMode:
    word = body.text("mode")
    if word is None:
        return TransferMode.COPY
    if word not in [mode.value for mode in TransferMode]:
        wrong_value("mode", f"must be one of {', '.join(mode.value for mode in TransferMode)}")
    return TransferMode(word)


def _read_chain(body: Body) -> bytes:
    word = body.text("chain")
    if word is None:
        return b""
    try:
        chain = bytes.fromhex(word)
    except ValueError:
        wrong_value("chain", "must be hexadecimal")
    if len(chain) % HASH_BYTES or not chain:
        wrong_value("chain", f"must be block hashes of {2 * HASH_BYTES} digits each")
    return chain
