"""Where a policy passed over the longest known prefix, and what that cost, in words."""

from lmpool.core.explanation import decision_lines
from lmpool.core.history import Visit
from lmpool.core.ids import Nanos, Rank
from lmpool.core.limits import DECISIONS_KEPT
from lmpool.core.messages.ingress_control import Decision
from lmpool.sim.rack import EPOCH
from lmpool.sim.replay import Replay

LOOK_EVERY = DECISIONS_KEPT // 2
"""Decisions: before control forgets any."""


class Watch:
    """Gathers the decisions of a run in which some rank knew more of the prompt than the one that got it."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._seen = 0
        self._passed: list[tuple[int, Decision]] = []
        """With the tokens that are computed again for it."""

    def look(self) -> None:
        if self._replay.front.decided - self._seen >= LOOK_EVERY:
            self._gather()

    def _gather(self) -> None:
        for decision in self._replay.rack.decisions(self._replay.front.decided - self._seen):
            lost = _lost_tokens(decision)
            if lost > 0:
                self._passed.append((lost, decision))
        self._seen = self._replay.front.decided

    def lines(self, limit: int) -> list[str]:
        """At the end of the run: how many there were, and the dearest."""
        self._gather()
        self._passed.sort(key=_dearest_first)
        total = sum(lost for lost, _ in self._passed)
        policy = self._replay.rack.control.snapshot().state.policy
        lines = [
            "",
            f"{policy}: {len(self._passed)} of {self._seen} decisions passed over the longest known prefix, "
            f"which left {total:,} tokens to compute again",
        ]
        for lost, decision in self._passed[:limit]:
            lines.append(f"request {decision.request.counter}: {lost:,} tokens")
            lines += decision_lines(decision, _visit(self._replay, decision))
        return lines


def _lost_tokens(decision: Decision) -> int:
    uncached = {other.rank: other.uncached_tokens for other in decision.candidates if other.eligible}
    return uncached[decision.rank] - min(uncached.values()) if decision.rank is not None else 0


def _dearest_first(entry: tuple[int, Decision]) -> tuple[int, int]:
    return -entry[0], entry[1].number


def _visit(replay: Replay, decision: Decision) -> Visit | None:
    """None if the request was submitted again since."""
    times = replay.front.times[decision.request.counter]
    if times.rank != decision.rank or times.submitted_ns < decision.at_ns:
        return None
    return Visit(
        attempt=decision.attempt,
        rank=Rank(times.rank),
        epoch=EPOCH,
        is_degraded=False,
        submitted_ns=Nanos(times.submitted_ns),
        begun_ns=Nanos(times.begun_ns),
        waited_ns=Nanos(times.waited_ns),
        cached_tokens=times.cached_tokens,
        first_token_ns=Nanos(times.first_ns),
        end="complete",
    )
