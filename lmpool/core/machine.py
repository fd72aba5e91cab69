"""The door that `Worker`, `ControlPlane` and `Ingress` have in common: what drives one drives them all."""

from typing import Protocol, TypeVar

from lmpool.core.events import Tick
from lmpool.core.ids import Nanos

Event_contra = TypeVar("Event_contra", contravariant=True)
Effect = TypeVar("Effect")


class Machine(Protocol[Event_contra, Effect]):
    def handle(self, now: Nanos, event: Event_contra | Tick) -> list[Effect]: ...

    def next_deadline(self) -> Nanos | None: ...
