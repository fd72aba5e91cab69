"""A session stays at home while home has no more than its share and a quarter of the requests in flight."""

from lmpool.core.fleet import Choice, RouteView
from lmpool.core.ids import Rank
from lmpool.core.messages.ingress_control import RouteAsked
from lmpool.core.policies.homes import BLOCKS_MAX, SESSIONS_MAX, Homes
from lmpool.core.policies.least_loaded import TERM_NAMES, choose_least_loaded
from lmpool.core.policies.session import index_of


class SessionBounded:
    __slots__ = ("_homes",)
    name = "session-bounded"
    term_names = TERM_NAMES

    def __init__(self) -> None:
        self._homes = Homes(SESSIONS_MAX, BLOCKS_MAX)

    def choose(self, view: RouteView) -> Choice:
        home = self._homes.home(view.asked)
        if home is None:
            return choose_least_loaded(view, "no home: fewest requests in flight")
        index = index_of(home, view)
        if index is None:
            return choose_least_loaded(view, "home not eligible: fewest requests in flight")
        elsewhere = choose_least_loaded(view, "home has more than its share: fewest requests in flight")
        count, requests = len(view.ranks), sum(rank.requests for rank in view.ranks)
        share = -(-5 * (requests + 1) // (4 * count))  # ceil(1.25 x (all + 1) / ranks), in whole numbers
        if view.ranks[index].requests + 1 > share:
            return elsewhere
        return Choice(index, "home", elsewhere.terms, elsewhere.costs)

    def remember(self, asked: RouteAsked, rank: Rank) -> None:
        self._homes.remember(asked, rank)

    def digest_state(self) -> str:
        return self._homes.digest_state()
