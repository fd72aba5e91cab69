"""Any rank, by the chance that came with the question."""

from lmpool.core.fleet import Choice, RouteView
from lmpool.core.ids import Rank
from lmpool.core.messages.ingress_control import RouteAsked


class UniformRandom:
    __slots__ = ()
    name = "random"
    term_names = ()

    def choose(self, view: RouteView) -> Choice:
        count = len(view.ranks)
        return Choice(view.asked.draw % count, "drawn", (), [0.0] * count)

    def remember(self, asked: RouteAsked, rank: Rank) -> None:
        pass

    def digest_state(self) -> str:
        return ""
