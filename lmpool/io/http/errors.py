"""The one shape in which every failure reaches a client: `{"error": {"message", "type", "param", "code"}}`."""

import math
from collections.abc import Mapping
from enum import Enum

import attrs
import orjson
from starlette.responses import Response


class Code(Enum):
    """Every `code` this server makes, with its status and type; `specs/api.md` says when each comes."""

    INVALID_HTTP = ("invalid_http", 400, "invalid_request_error")
    INVALID_JSON = ("invalid_json", 400, "invalid_request_error")
    MISSING_FIELD = ("missing_field", 400, "invalid_request_error")
    INVALID_TYPE = ("invalid_type", 400, "invalid_request_error")
    INVALID_VALUE = ("invalid_value", 400, "invalid_request_error")
    UNSUPPORTED_FIELD = ("unsupported_field", 400, "invalid_request_error")
    CONTEXT_LENGTH_EXCEEDED = ("context_length_exceeded", 400, "invalid_request_error")
    NO_CHAT_TEMPLATE = ("no_chat_template", 400, "invalid_request_error")
    INVALID_API_KEY = ("invalid_api_key", 401, "authentication_error")
    ADMIN_KEY_REQUIRED = ("admin_key_required", 403, "permission_error")
    MODEL_NOT_FOUND = ("model_not_found", 404, "invalid_request_error")
    NOT_FOUND = ("not_found", 404, "invalid_request_error")
    METHOD_NOT_ALLOWED = ("method_not_allowed", 405, "invalid_request_error")
    DEADLINE_EXCEEDED = ("deadline_exceeded", 408, "timeout_error")
    BODY_TOO_SLOW = ("body_too_slow", 408, "timeout_error")
    TRANSFER_DENIED = ("transfer_denied", 409, "invalid_request_error")
    BODY_TOO_LARGE = ("body_too_large", 413, "invalid_request_error")
    UNSUPPORTED_MEDIA_TYPE = ("unsupported_media_type", 415, "invalid_request_error")
    RATE_LIMIT_EXCEEDED = ("rate_limit_exceeded", 429, "rate_limit_error")
    SERVER_BUSY = ("server_busy", 429, "rate_limit_error")
    INTERNAL_ERROR = ("internal_error", 500, "server_error")
    GENERATION_FAILED = ("generation_failed", 500, "server_error")
    NO_REPLICA = ("no_replica", 503, "unavailable_error")
    NOT_READY = ("not_ready", 503, "unavailable_error")
    DRAINING = ("draining", 503, "unavailable_error")

    @property
    def word(self) -> str:
        return self.value[0]

    @property
    def status(self) -> int:
        return self.value[1]

    @property
    def kind(self) -> str:
        return self.value[2]


@attrs.frozen
class ApiError(Exception):
    """Ends a request with an error of one of the codes."""

    code: Code
    message: str
    param: str | None = None
    """The field or header that is wrong, as a path such as `messages[0].content`."""
    retry_after_s: float | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        if self.code is Code.DEADLINE_EXCEEDED:
            # The openai client repeats a 408 of its own accord, which is not what a deadline asks for.
            return {"x-should-retry": "false"}
        if self.code is Code.INVALID_API_KEY:
            return {"www-authenticate": "Bearer"}
        if self.retry_after_s is not None:
            return {"retry-after": str(max(1, math.ceil(self.retry_after_s)))}
        return {}


def error_body(error: ApiError) -> bytes:
    content = {
        "message": error.message,
        "type": error.code.kind,
        "param": error.param,
        "code": error.code.word,
    }
    return orjson.dumps({"error": content})


def error_response(error: ApiError) -> Response:
    return Response(error_body(error), error.code.status, error.headers, "application/json")
