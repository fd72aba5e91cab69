"""Fewest requests in flight."""

from lmpool.core.fleet import Choice, RouteView, least
from lmpool.core.ids import Rank
from lmpool.core.messages.ingress_control import RouteAsked

TERM_NAMES = ("requests",)


def choose_least_loaded(view: RouteView, reason: str) -> Choice:
    costs = [float(rank.requests) for rank in view.ranks]
    return Choice(least(costs, view), reason, costs, costs)


class LeastLoaded:
    __slots__ = ()
    name = "least-loaded"
    term_names = TERM_NAMES

    def choose(self, view: RouteView) -> Choice:
        return choose_least_loaded(view, "fewest requests in flight")

    def remember(self, asked: RouteAsked, rank: Rank) -> None:
        pass

    def digest_state(self) -> str:
        return ""
