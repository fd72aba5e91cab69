"""The body of the control process: its machine, behind one socket for workers and ingresses."""

import asyncio
import os
from pathlib import Path

import lmpool
from lmpool.core.carrier import PlacementRules
from lmpool.core.control import ControlPlane, ControlSettings
from lmpool.core.effects import ControlEffect
from lmpool.core.events import ControlEvent
from lmpool.core.ids import MILLISECOND, SECOND, Epoch, Nanos, Peer, Rank, Role
from lmpool.core.limits import DECISIONS_KEPT
from lmpool.core.plan import ReplicaError
from lmpool.io.child import ChildEnd, drain_ordered
from lmpool.io.clock import monotonic_now
from lmpool.io.driver import Driver
from lmpool.io.link import LINK_BOUNDS, Identity, LinkEvent, Links, control_address
from lmpool.io.orders import Beat, ControlOrder, Ready
from lmpool.io.placement import placement_rules
from lmpool.io.recording import RecordedPlane, RecordingBegun, RecordingError, open_recording, recording_begun
from lmpool.io.settings.knob import size_text

BEAT_S = 1.0
BOOKINGS_MAX = 65_536
"""Far more than all queues of 64 ranks hold; about 30 MB."""
WAITING_ROUTES_MAX = 4_096
"""Arrivals of the 300 ms in which a new control settles, at more than ten thousand a second."""
SWEEP_HASHES = 4_096
"""About a millisecond of one core."""
TRANSFER_ANSWER_NS = SECOND
"""A worker answers between two events, but its process may have to wait for a core."""


def _settings(order: ControlOrder, placement: PlacementRules | None) -> ControlSettings:
    return ControlSettings(
        policy=order.policy,
        replicas=order.replicas,
        wait_max_ns=Nanos(round(order.wait_max_s * SECOND)),
        suspect_after_ns=Nanos(3 * SECOND),
        settle_ns=Nanos(300 * MILLISECOND),
        report_wait_ns=SECOND,
        booking_ns=Nanos(30 * SECOND),
        bookings_max=BOOKINGS_MAX,
        waiting_routes_max=WAITING_ROUTES_MAX,
        sweep_hashes=SWEEP_HASHES,
        decisions_kept=DECISIONS_KEPT,
        transfer_answer_ns=TRANSFER_ANSWER_NS,
        placement=placement,
    )


async def run_control(order: ControlOrder, channel: ChildEnd) -> None:
    """Ends when told to drain: nothing lives here that would have to go on. Raises ReplicaError."""
    drain = drain_ordered(channel)
    rules, placing = placement_rules(order.placement, order.replicas)
    settings, began = _settings(order, rules), monotonic_now()
    plane = ControlPlane(settings, Epoch(order.epoch), began)
    recorded, facts = _recorded(order, plane, recording_begun(settings, order.epoch, lmpool.__version__, began))

    def hear(event: LinkEvent) -> None:
        driver.feed(event)

    def perform(effect: ControlEffect) -> None:
        links.send(effect.peer, effect.message)

    async def beat() -> None:
        while True:
            channel.note(Beat(working=False, steps=0))
            await asyncio.sleep(BEAT_S)

    peer = Peer(Role.CONTROL, Rank(0), Epoch(order.epoch))
    links = Links(Identity(order.run, peer, os.getuid()), LINK_BOUNDS, hear)
    driver: Driver[ControlEvent, ControlEffect] = Driver(recorded or plane, monotonic_now, perform)
    await links.listen(control_address(order.run_folder), (Role.WORKER, Role.INGRESS))
    channel.note(Ready((*placing, *facts)))
    beats = asyncio.get_running_loop().create_task(beat())
    try:
        await asyncio.wait((drain, driver.fault), return_when=asyncio.FIRST_COMPLETED)
        if driver.fault.done():
            driver.fault.result()
    finally:
        beats.cancel()
        await links.close()
        driver.close()
        if recorded is not None:
            recorded.close()


def _recorded(
    order: ControlOrder, plane: ControlPlane, begun: RecordingBegun
) -> tuple[RecordedPlane | None, tuple[str, ...]]:
    """With the line that tells it. Raises ReplicaError."""
    if order.record_file is None:
        return None, ()
    path = Path(f"{order.record_file}.{order.epoch}")
    try:
        file = open_recording(path)
    except RecordingError as error:
        raise ReplicaError(str(error), "name another file with --record-control") from error
    fact = f"recording its events to {path}, at most {size_text(order.record_bytes_max)}"
    return RecordedPlane(plane, file, order.record_bytes_max, begun), (fact,)
