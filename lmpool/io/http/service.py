"""What the HTTP server needs from the rest of the process, and the settings that it runs under."""

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

import attrs

from lmpool.core.ids import Nanos, TransferId
from lmpool.core.ingress import IngressSnapshot
from lmpool.core.messages.ingress_control import StateReported
from lmpool.io.explained import Explained
from lmpool.io.generation import Chunk, GenerationRequest
from lmpool.io.http.errors import ApiError, Code
from lmpool.io.http.keys import Keys
from lmpool.io.text.model_text import ModelText
from lmpool.io.transfer_order import TransferWish


class Service(Protocol):
    """The pool as the server sees it: the ingress, or a script in tests."""

    @property
    def is_ready(self) -> bool:
        """Whether a request could be taken now."""
        ...

    @property
    def has_joined(self) -> bool:
        """Whether a replica has joined in this life; then a request waits for one to come back."""
        ...

    @property
    def tokens_max(self) -> int:
        """Longest context in force, prompt and output."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Raises LMPoolError. Closing it early cancels the request."""
        ...

    def snapshot(self) -> IngressSnapshot:
        """Of the ingress itself."""
        ...

    async def pool_state(self) -> StateReported:
        """Raises NoReplica while control does not answer."""
        ...

    async def explain(self, word: str | None, tenant: str | None, limit: int) -> Explained:
        """Decisions and what became of them; `word`: of which request, as a client names it; `tenant`: of whom alone.
        Raises NoReplica while control does not answer."""
        ...

    async def transfer(self, wish: TransferWish) -> TransferId:
        """Begins it. Raises BadRequest, TransferDenied, and NoReplica while control does not answer."""
        ...

    async def clear_cache(self) -> int:
        """Blocks that were dropped, over all replicas."""
        ...


@attrs.frozen
class Context:
    """What endpoints share."""

    service: Service
    text: ModelText
    names: tuple[str, ...]
    """Under which the model is served; the first is the default."""
    keys: Keys | None
    """None: no authentication, one tenant."""
    body_bytes_max: int
    requests_max: int
    """Generation requests inside at any time."""
    now: Callable[[], Nanos]
    """The monotonic clock of the process."""
    created: int
    """Seconds since 1970 when the model became available."""


def served_name(context: Context, asked: str | None) -> str:
    """Raises ApiError for a name that is not served; without one the first name is meant."""
    if asked is None:
        return context.names[0]
    if asked not in context.names:
        names = ", ".join(context.names)
        raise ApiError(Code.MODEL_NOT_FOUND, f"No such model here; this server has: {names}.", "model")
    return asked
