"""The HTTP application: which path leads where."""

from typing import Any

import attrs
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from lmpool.io.http.asked import read_chat, read_completion
from lmpool.io.http.connection import ClientLeftError
from lmpool.io.http.door import Door
from lmpool.io.http.errors import ApiError, Code, error_response
from lmpool.io.http.gate import Gate
from lmpool.io.http.generate import GenerationEndpoint
from lmpool.io.http.inspection import Inspection
from lmpool.io.http.service import Context
from lmpool.io.http.tokens import Tokens
from lmpool.io.http.transfers import TransferOrders
from lmpool.io.metrics import Metrics


@attrs.frozen
class Application:
    asgi: ASGIApp
    door: Door
    metrics: Metrics


def create_app(context: Context) -> Application:
    door = Door(context.requests_max)
    metrics = Metrics(context.now)
    inspection = Inspection(context, door, metrics)
    tokens = Tokens(context)
    transfers = TransferOrders(context)

    def generation(path: str, read: Any) -> Route:
        return Route(path, GenerationEndpoint(context, door, metrics, path, read), methods=["POST"])

    routes = [
        generation("/v1/completions", read_completion),
        generation("/v1/chat/completions", read_chat),
        Route("/v1/models", inspection.models),
        Route("/v1/models/{name:path}", inspection.model),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
        Route("/livez", inspection.livez),
        Route("/readyz", inspection.readyz),
        Route("/metrics", inspection.metrics),
        Route("/openapi.json", inspection.openapi),
        Route("/pool/state", inspection.state),
        Route("/pool/decisions", inspection.decisions),
        Route("/pool/clear", inspection.clear, methods=["POST"]),
        Route("/pool/transfer", transfers.order, methods=["POST"]),
    ]
    handlers: Any = {
        ApiError: _answer_error,
        ClientLeftError: _answer_nobody,
        HTTPException: _answer_http_exception,
        500: _answer_bug,
    }
    inside = Starlette(routes=routes, exception_handlers=handlers)
    inside.router.redirect_slashes = False
    return Application(Gate(inside, context.keys), door, metrics)


async def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _answer_nobody(_: Request, __: Exception) -> Response:
    """The client has left; what is returned goes nowhere."""
    return Response(status_code=400)


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own: no such path, or not that method."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    if error.status_code == Code.METHOD_NOT_ALLOWED.status:
        allowed = (error.headers or {})["Allow"]
        text = f"{request.method} is not possible on {path}, only {allowed}."
        response = error_response(ApiError(Code.METHOD_NOT_ALLOWED, text))
        response.headers["allow"] = allowed
        return response
    return error_response(ApiError(Code.NOT_FOUND, f"There is nothing at {path}; /openapi.json lists all paths."))


async def _answer_bug(_: Request, __: Exception) -> Response:
    """A fault of this server. Starlette raises it again after the answer, so that it is logged."""
    return error_response(ApiError(Code.INTERNAL_ERROR, "The server failed on this request; its log says why."))
