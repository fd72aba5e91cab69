"""A session stays at home; what has no home goes to the least loaded."""

from lmpool.core.fleet import Choice, RouteView
from lmpool.core.ids import Rank
from lmpool.core.messages.ingress_control import RouteAsked
from lmpool.core.policies.homes import BLOCKS_MAX, SESSIONS_MAX, Homes
from lmpool.core.policies.least_loaded import TERM_NAMES, choose_least_loaded


def index_of(rank: Rank | None, view: RouteView) -> int | None:
    for index, candidate in enumerate(view.ranks):
        if candidate.rank == rank:
            return index
    return None


class Session:
    __slots__ = ("_homes",)
    name = "session"
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
        elsewhere = choose_least_loaded(view, "")
        return Choice(index, "home", elsewhere.terms, elsewhere.costs)

    def remember(self, asked: RouteAsked, rank: Rank) -> None:
        self._homes.remember(asked, rank)

    def digest_state(self) -> str:
        return self._homes.digest_state()
