"""What a worker machine says in one `handle`: messages in order, tokens in one message for each ingress."""

from lmpool.core.effects import Send
from lmpool.core.ids import Peer
from lmpool.core.live_request import LiveRequest
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_worker import Finish, TokensProduced
from lmpool.core.plan import TokenLogprobs


class _TokenColumns:
    __slots__ = ("attempts", "choices", "finishes", "indexes", "logprobs", "requests", "tokens")

    def __init__(self) -> None:
        self.requests: list[int] = []
        self.attempts: list[int] = []
        self.choices: list[int] = []
        self.indexes: list[int] = []
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs | None] = []
        self.finishes: list[Finish | None] = []

    def message(self) -> TokensProduced:
        asked = any(logprobs is not None for logprobs in self.logprobs)
        return TokensProduced(
            tuple(self.requests),
            tuple(self.attempts),
            tuple(self.choices),
            tuple(self.indexes),
            tuple(self.tokens),
            tuple(self.logprobs) if asked else (),
            tuple(self.finishes),
        )


class Outbox:
    """Tokens stand where the first of them was put: after what was said before, before the ends that they cause."""

    __slots__ = ("_columns", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[tuple[Peer, Message | _TokenColumns]] = []
        self._columns: dict[Peer, _TokenColumns] = {}

    def say(self, peer: Peer, message: Message) -> None:
        self._waiting.append((peer, message))

    def put_token(
        self,
        request: LiveRequest,
        choice: int,
        output_index: int,
        token: int,
        logprobs: TokenLogprobs | None,
        finish: Finish | None,
    ) -> None:
        columns = self._columns.get(request.peer)
        if columns is None:
            columns = self._columns[request.peer] = _TokenColumns()
            self._waiting.append((request.peer, columns))
        columns.requests.append(request.id.counter)
        columns.attempts.append(request.submit.attempt)
        columns.choices.append(choice)
        columns.indexes.append(output_index)
        columns.tokens.append(token)
        columns.logprobs.append(logprobs)
        columns.finishes.append(finish)

    def take(self) -> list[Send]:
        sends = [
            Send(peer, message.message() if isinstance(message, _TokenColumns) else message)
            for peer, message in self._waiting
        ]
        self._waiting.clear()
        self._columns.clear()
        return sends
