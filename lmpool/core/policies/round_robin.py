"""Each rank in turn."""

from lmpool.core.fleet import Choice, RouteView, least
from lmpool.core.ids import Rank
from lmpool.core.messages.ingress_control import RouteAsked


class RoundRobin:
    __slots__ = ()
    name = "round-robin"
    term_names = ()

    def choose(self, view: RouteView) -> Choice:
        costs = [0.0] * len(view.ranks)
        return Choice(least(costs, view), "its turn", (), costs)

    def remember(self, asked: RouteAsked, rank: Rank) -> None:
        pass

    def digest_state(self) -> str:
        return ""
