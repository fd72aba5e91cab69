"""Who has how many answers under way, and what follows from it where tenants meet.

Two rules, of which neither says anything on a server that has seen one tenant only:

- A tenant may have at most `FREE_FACTOR` times as many answers under way as places are free. So one alone fills seven
  eighths of the server, several end with equal parts, and whoever comes new finds a place. Where nothing is under way
  whatever fits is taken, lest a large request be refused for ever.
- A request of a tenant that has over a quarter more than the mean of those who have any stands one priority class
  behind, so that a flood waits behind whoever asks now and then.
"""

from lmpool.core.limits import PRIORITY_MAX

FREE_FACTOR = 7


class TenantShares:
    """Owned by the request table. Tenants are as many as operators have named."""

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: dict[str, int] = {}
        """By tenant: choices of its open requests. Who was here once stays, with 0."""

    def see(self, tenant: str) -> None:
        """It has asked, whatever becomes of it."""
        self._answers.setdefault(tenant, 0)

    def change(self, tenant: str, choices: int) -> None:
        self._answers[tenant] = self._answers.get(tenant, 0) + choices
        assert self._answers[tenant] >= 0

    def of(self, tenant: str) -> int:
        return self._answers.get(tenant, 0)

    def may_add(self, tenant: str, choices: int, free: int) -> bool:
        """`free`: places that nobody has. Whether so many of them fit."""
        wanted = self.of(tenant) + choices
        is_alone = len(self._answers) < 2 or not any(self._answers.values())
        return choices <= free and (is_alone or wanted <= FREE_FACTOR * (free - choices))

    def class_of(self, tenant: str, choices: int, priority: int) -> int:
        """The priority class in which a request of so many choices waits."""
        wanted = self.of(tenant) + choices
        counts = [count for other, count in self._answers.items() if count and other != tenant]
        is_above = 4 * wanted * (len(counts) + 1) > 5 * (sum(counts) + wanted)
        return min(priority + is_above, PRIORITY_MAX)

    def digest_state(self) -> str:
        return repr(self._answers)
