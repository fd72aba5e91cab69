"""When a copy ends at the latest."""

import time
from datetime import timedelta

from lmpool.gpu.paths.port import CopyOrder, PathError


class Deadline:
    def __init__(self, order: CopyOrder) -> None:
        self._order = order
        self._ends_s = time.monotonic() + order.timeout_s

    def left(self) -> timedelta:
        """Raises PathError where nothing is left."""
        left = self._ends_s - time.monotonic()
        if left <= 0:
            raise PathError(f"transfer {self._order.transfer} took longer than {self._order.timeout_s:g} s")
        return timedelta(seconds=left)

    def check(self) -> None:
        """Raises PathError."""
        self.left()
