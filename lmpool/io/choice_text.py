"""The text of one choice as its tokens come: decoded one by one, cut at stop strings."""

from collections.abc import Sequence

import attrs

from lmpool.io.text.stop import StopMatcher
from lmpool.io.text.token_bytes import TextStream


@attrs.frozen
class Cut:
    """Text that may leave now, and whether a stop string ends the choice with it."""

    text: str
    is_stopped: bool


class ChoiceText:
    """Stop strings count in the text of tokens after the first `min_tokens`."""

    __slots__ = ("_matcher", "_min_tokens", "_stream")

    def __init__(self, stream: TextStream, stops: Sequence[str], min_tokens: int, *, includes_stop: bool) -> None:
        self._stream = stream
        self._matcher = StopMatcher(stops, includes_stop=includes_stop)
        self._min_tokens = min_tokens

    def feed(self, output_index: int, token: int) -> Cut:
        text = self._stream.feed(token)
        return Cut(text, is_stopped=False) if output_index < self._min_tokens else self._match(text)

    def end(self) -> Cut:
        """The worker has ended the choice: what was held back leaves, unless its last character completes a stop."""
        cut = self._match(self._stream.flush())
        return cut if cut.is_stopped else Cut(cut.text + self._matcher.flush(), is_stopped=False)

    def _match(self, text: str) -> Cut:
        released = self._matcher.feed(text)
        return Cut(released.text, released.stop is not None)
