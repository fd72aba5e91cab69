"""What callers of LMPool can run into; every other exception is a bug."""


class LMPoolError(Exception):
    """Of all of them. Its text is one or a few sentences for whoever asked."""


class BadRequest(LMPoolError):
    """The request contradicts itself or the model."""

    def __init__(self, message: str, param: str | None, code: str) -> None:
        """`param`: the field at fault, as OpenAI's API names it. `code`: a word of `specs/api.md`."""
        super().__init__(message)
        self.param = param
        self.code = code


class Busy(LMPoolError):
    """Nothing was begun; the same request may succeed after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NoReplica(LMPoolError):
    """No replica is up, or none came back in time for a request that lost its own."""


class DeadlinePassed(LMPoolError):
    """The request was not complete at the deadline that it named."""


class GenerationFailed(LMPoolError):
    """The model failed on this request."""


class TransferDenied(LMPoolError):
    """Control does not begin the transfer that was ordered."""


class Draining(LMPoolError):
    """The server or engine is ending and takes nothing new."""


class StartFailed(LMPoolError):
    """Text: the first cause and what to do about it, in a few lines."""


class EngineClosed(LMPoolError):
    """The engine is not open, or was closed while the request ran."""

    def __init__(self) -> None:
        super().__init__("The engine is not open: use it inside `async with AsyncEngine(...) as engine`.")


class PoolLost(LMPoolError):
    """A replica or control of this engine could not be kept up. Text: the first cause, in a few lines."""
