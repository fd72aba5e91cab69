"""Stop strings, matched on text whatever the token edges.

One automaton (Knuth, Morris, Pratt) a stop string, fed character by character: the match that is *complete* first
wins, and of those complete at the same character the one that began first. So the answer depends on the text alone
and never on how it was cut into tokens, and the work is linear in it.
"""

from collections.abc import Sequence

import attrs


@attrs.frozen
class Released:
    """Text that may leave the server, and the stop string that was completed, if any."""

    text: str
    stop: str | None


class StopMatcher:
    """Holds back the longest tail that is a real beginning of some stop string, and nothing else."""

    __slots__ = ("_borders", "_held", "_includes_stop", "_matched", "_stops")

    def __init__(self, stops: Sequence[str], *, includes_stop: bool) -> None:
        """`includes_stop`: a completed stop string is part of the text. Every stop has at least one character."""
        assert all(stops)
        self._stops = tuple(stops)
        self._borders = tuple(_borders(stop) for stop in stops)
        self._matched = [0] * len(self._stops)
        self._held = ""
        self._includes_stop = includes_stop

    def feed(self, text: str) -> Released:
        """After a stop was found, the rest of the text is dropped and nothing more may be fed."""
        if not self._stops:
            return Released(text, None)
        for index, character in enumerate(text):
            stop = self._advance(character)
            if stop is not None:
                complete = self._held + text[: index + 1]
                self._held = ""
                return Released(complete if self._includes_stop else complete[: -len(stop)], stop)
        pending = self._held + text
        keep = max(self._matched)
        self._held = pending[len(pending) - keep :]
        return Released(pending[: len(pending) - keep], None)

    def flush(self) -> str:
        """The text ends here: what was held back is no stop string."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        """The longest stop string that this character completes."""
        found: str | None = None
        for number, stop in enumerate(self._stops):
            borders = self._borders[number]
            matched = self._matched[number]
            while matched and stop[matched] != character:
                matched = borders[matched - 1]
            if stop[matched] == character:
                matched += 1
            if matched == len(stop):
                found = stop if found is None or len(stop) > len(found) else found
            else:
                self._matched[number] = matched
        return found


def _borders(stop: str) -> list[int]:
    """For each prefix the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    matched = 0
    for index in range(1, len(stop)):
        while matched and stop[index] != stop[matched]:
            matched = borders[matched - 1]
        if stop[index] == stop[matched]:
            matched += 1
        borders[index] = matched
    return borders
