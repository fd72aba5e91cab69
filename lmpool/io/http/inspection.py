"""Everything that is not generation: probes, models, metrics, the document of the API, and the pool from inside."""

import asyncio

import orjson
from starlette.requests import Request
from starlette.responses import Response

from lmpool.core.limits import DECISIONS_KEPT
from lmpool.io.errors import LMPoolError
from lmpool.io.http.door import LOADING_RETRY_S, Door
from lmpool.io.http.errors import ApiError, Code, error_response
from lmpool.io.http.faults import api_error_of
from lmpool.io.http.gate import caller_of, require_admin
from lmpool.io.http.openapi import openapi_document
from lmpool.io.http.pool import DECISIONS_DEFAULT, explained_document, state_document
from lmpool.io.http.service import Context, served_name
from lmpool.io.metrics import Metrics, PoolView

NAME_CHARACTERS_MAX = 24 * 1024
"""The ids of as many prompts as one HTTP request may have."""
SCRAPE_S = 1.0
"""How long a scrape waits for control, before it shows that control is not up."""


class Inspection:
    def __init__(self, context: Context, door: Door, metrics: Metrics) -> None:
        self._context = context
        self._door = door
        self._metrics = metrics
        self._openapi = orjson.dumps(openapi_document())

    async def livez(self, _: Request) -> Response:
        return json_response({"status": "alive"})

    async def readyz(self, _: Request) -> Response:
        if self._door.is_draining:
            return error_response(ApiError(Code.DRAINING, "The server is ending."))
        if not self._context.service.is_ready:
            text = "No replica is ready yet."
            return error_response(ApiError(Code.NOT_READY, text, retry_after_s=LOADING_RETRY_S))
        return json_response({"status": "ready"})

    async def models(self, _: Request) -> Response:
        data = [self._model_document(name) for name in self._context.names]
        return json_response({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        return json_response(self._model_document(served_name(self._context, request.path_params["name"])))

    async def metrics(self, _: Request) -> Response:
        try:
            async with asyncio.timeout(SCRAPE_S):
                state = await self._context.service.pool_state()
        except (LMPoolError, TimeoutError):
            state = None
        is_ready = self._context.service.is_ready and not self._door.is_draining
        body = self._metrics.render(PoolView(is_ready, self._context.names[0], self._context.service.snapshot(), state))
        return Response(body, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, _: Request) -> Response:
        return Response(self._openapi, media_type="application/json")

    async def state(self, _: Request) -> Response:
        try:
            return json_response(state_document(await self._context.service.pool_state()))
        except LMPoolError as error:
            raise api_error_of(error) from error

    async def decisions(self, request: Request) -> Response:
        word = _read_name(request.query_params.get("request"))
        limit = _read_limit(request.query_params.get("limit"))
        client = caller_of(request.scope).client
        tenant = None if self._context.keys is None or client.is_admin else client.tenant
        try:
            return json_response(explained_document(await self._context.service.explain(word, tenant, limit)))
        except LMPoolError as error:
            raise api_error_of(error) from error

    async def clear(self, request: Request) -> Response:
        require_admin(caller_of(request.scope))
        try:
            return json_response({"blocks": await self._context.service.clear_cache()})
        except LMPoolError as error:
            raise api_error_of(error) from error

    def _model_document(self, name: str) -> dict[str, object]:
        return {
            "id": name,
            "object": "model",
            "created": self._context.created,
            "owned_by": "lmpool",
            "max_model_len": self._context.service.tokens_max,
        }


def json_response(content: object) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")


def _read_name(word: str | None) -> str | None:
    """Of a request, as a client knows it."""
    if word is not None and not (word and word.isascii() and word.isprintable() and len(word) <= NAME_CHARACTERS_MAX):
        text = f"request must be 1 to {NAME_CHARACTERS_MAX} printable ASCII characters."
        raise ApiError(Code.INVALID_VALUE, text, "request")
    return word


def _read_limit(word: str | None) -> int:
    if word is None:
        return DECISIONS_DEFAULT
    if not (word.isascii() and word.isdecimal() and len(word) <= 6 and 1 <= int(word) <= DECISIONS_KEPT):
        raise ApiError(Code.INVALID_VALUE, f"limit must be an integer from 1 to {DECISIONS_KEPT}.", "limit")
    return int(word)
