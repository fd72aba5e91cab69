"""Connections whose client owes something and does nothing end after a while.

A client owes the rest of a request's head, from connecting on and between two requests; and to take what it was sent,
where no more can be written before it does. Bodies have a time of their own (`connection.py`).
"""

from typing import Protocol

import attrs

PATIENCE_S = 75.0
"""Longer than the pools of usual clients keep an idle connection."""

LOOK_S = 5.0
"""Between two looks at all connections."""


class Connection(Protocol):
    """A client's, as patience sees it."""

    @property
    def owed(self) -> int | None:
        """Bytes that the client has to take first; 0: it has to ask; None: the turn is the server's."""
        ...

    @property
    def latest(self) -> object:
        """Its latest request; None before the first."""
        ...

    def cut(self) -> None:
        """At once, whatever is unsent."""
        ...


@attrs.frozen
class _Debt:
    owed: int
    latest: object
    since_s: float


class Patience:
    """Over all connections of a server."""

    def __init__(self) -> None:
        self._debts: dict[Connection, _Debt | None] = {}

    def __len__(self) -> int:
        return len(self._debts)

    def begin(self, connection: Connection) -> None:
        self._debts[connection] = None

    def end(self, connection: Connection) -> None:
        self._debts.pop(connection, None)

    def look(self, now_s: float) -> None:
        """To be called every `LOOK_S`."""
        for connection, debt in list(self._debts.items()):
            owed = connection.owed
            if owed is None:
                self._debts[connection] = None
            elif debt is None or debt.latest is not connection.latest or owed < debt.owed:
                self._debts[connection] = _Debt(owed, connection.latest, now_s)
            elif now_s - debt.since_s >= PATIENCE_S:
                connection.cut()
