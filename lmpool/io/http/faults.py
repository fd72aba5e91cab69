"""What the pool's own errors are called in the API."""

from lmpool.io.errors import (
    BadRequest,
    Busy,
    DeadlinePassed,
    Draining,
    GenerationFailed,
    LMPoolError,
    NoReplica,
    TransferDenied,
)
from lmpool.io.http.errors import ApiError, Code

RETRY_S = 2.0
"""A replica that ended is back in some seconds."""

BAD_REQUEST_CODES = {code.word: code for code in Code if code.status == 400}


def api_error_of(error: LMPoolError) -> ApiError:
    text = str(error)
    match error:
        case BadRequest(param=param, code=word):
            return ApiError(BAD_REQUEST_CODES[word], text, param)
        case Busy(retry_after_s=retry_after_s):
            return ApiError(Code.SERVER_BUSY, text, retry_after_s=retry_after_s)
        case DeadlinePassed():
            return ApiError(Code.DEADLINE_EXCEEDED, text)
        case NoReplica():
            return ApiError(Code.NO_REPLICA, text, retry_after_s=RETRY_S)
        case TransferDenied():
            return ApiError(Code.TRANSFER_DENIED, text)
        case Draining():
            return ApiError(Code.DRAINING, text, retry_after_s=RETRY_S)
        case GenerationFailed():
            return ApiError(Code.GENERATION_FAILED, text)
        case _:
            return ApiError(Code.INTERNAL_ERROR, text)
