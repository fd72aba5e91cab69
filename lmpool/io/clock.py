"""The one clock of io. Every process of a machine reads the same monotonic clock, so its times can cross links."""

import time

from lmpool.core.ids import Nanos


def monotonic_now() -> Nanos:
    return Nanos(time.monotonic_ns())
