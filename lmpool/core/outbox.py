"""What a worker machine says in one `handle`: messages in order, tokens in one message for each ingress."""

from itertools import repeat
from typing import TypeAlias

from lmpool.core.effects import Send
from lmpool.core.ids import Peer
from lmpool.core.live_request import LiveRequest
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_worker import Finish, TokensProduced
from lmpool.core.plan import TokenLogprobs

_Row: TypeAlias = tuple[int, int, int, int, int, TokenLogprobs | None, Finish | None]
"""Of `TokensProduced`, column by column."""


class _Tokens:
    """For one ingress."""

    __slots__ = ("has_logprobs", "rows")

    def __init__(self) -> None:
        self.rows: list[_Row] = []
        self.has_logprobs = False

    def message(self) -> TokensProduced:
        requests, attempts, choices, indexes, tokens, logprobs, finishes = zip(*self.rows, strict=True)
        return TokensProduced(
            requests, attempts, choices, indexes, tokens, logprobs if self.has_logprobs else (), finishes
        )


class Outbox:
    """Tokens stand where the first of them was put: after what was said before, before the ends that they cause."""

    __slots__ = ("_tokens", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[tuple[Peer, Message | _Tokens]] = []
        self._tokens: dict[Peer, _Tokens] = {}

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
        tokens = self._tokens.get(request.peer) or self._tokens_for(request.peer)
        if logprobs is not None:
            tokens.has_logprobs = True
        submit = request.submit
        tokens.rows.append((submit.request.counter, submit.attempt, choice, output_index, token, logprobs, finish))

    def put_tokens(self, request: LiveRequest, choice: int, output_index: int, tokens: tuple[int, ...]) -> None:
        """Of several steps, from `output_index` on; none ends the choice."""
        count, submit = len(tokens), request.submit
        columns = (
            repeat(submit.request.counter, count),
            repeat(submit.attempt, count),
            repeat(choice, count),
            range(output_index, output_index + count),
            tokens,
            repeat(None, count),
            repeat(None, count),
        )
        self._tokens_for(request.peer).rows += zip(*columns, strict=True)

    def _tokens_for(self, peer: Peer) -> _Tokens:
        tokens = self._tokens.get(peer)
        if tokens is None:
            tokens = self._tokens[peer] = _Tokens()
            self._waiting.append((peer, tokens))
        return tokens

    def take(self) -> list[Send]:
        sends = [
            Send(peer, message.message() if isinstance(message, _Tokens) else message)
            for peer, message in self._waiting
        ]
        self._waiting.clear()
        self._tokens.clear()
        return sends
