"""The two ends of a data path over one connected Unix socket, whatever its kind.

The source offers its pool there first, so that a target refuses what does not fit before anything is copied. Pairs
then talk over the socket; one-sided paths need it no more.
"""

import os
import socket
from contextlib import ExitStack

from lmpool.gpu.kv_pool import KVPool
from lmpool.gpu.paths.checksum import OneSidedSource
from lmpool.gpu.paths.cuda_driver import CopyEngine
from lmpool.gpu.paths.cuda_ipc import CudaIPCTarget
from lmpool.gpu.paths.offer import PoolOffer, receive_offer, send_offer
from lmpool.gpu.paths.pair_source import PairSource
from lmpool.gpu.paths.pair_target import PairTarget
from lmpool.gpu.paths.planes import DevicePlanes, HostPlanes, pool_form
from lmpool.gpu.paths.port import CopyRefused, DataPath, PathKind, PathSettings, check_forms
from lmpool.gpu.paths.shared_memory import SharedMemoryTarget

OFFER_S = 30.0
"""How long either end waits for the other here."""

PAIRED = (PathKind.GLOO, PathKind.NCCL)


def open_source(settings: PathSettings, connected: socket.socket, pool: KVPool, engine: CopyEngine | None) -> DataPath:
    """Takes the socket over; `engine` is for CUDA IPC. Raises PathError."""
    with ExitStack() as closing:
        closing.callback(connected.close)
        connected.settimeout(OFFER_S)
        send_offer(connected, settings.kind, pool, engine)
        if settings.kind in PAIRED:
            path = PairSource(settings, connected, pool)
            closing.pop_all()
            return path
    on_host = settings.kind is PathKind.SHARED_MEMORY
    return OneSidedSource(HostPlanes(pool) if on_host else DevicePlanes(pool, is_staged_on_host=True))


def open_target(settings: PathSettings, connected: socket.socket, pool: KVPool, engine: CopyEngine | None) -> DataPath:
    """Waits for the source's offer, takes the socket over; `engine` is for CUDA IPC. Raises PathError."""
    with ExitStack() as closing:
        closing.callback(connected.close)
        connected.settimeout(OFFER_S)
        offer, descriptor = receive_offer(connected)
        if descriptor is not None:
            closing.callback(os.close, descriptor)
        if offer.kind is not settings.kind:
            raise CopyRefused(f"the source offers {offer.kind.value} and {settings.kind.value} is expected")
        check_forms(offer.form, pool_form(pool))
        if settings.kind in PAIRED:
            path = PairTarget(settings, connected, pool)
            closing.pop_all()
            return path
        return _one_sided(offer, descriptor, pool, engine)


def _one_sided(offer: PoolOffer, descriptor: int | None, pool: KVPool, engine: CopyEngine | None) -> DataPath:
    if descriptor is not None:
        return SharedMemoryTarget(descriptor, offer.form, pool)
    assert offer.memory is not None
    assert engine is not None
    return CudaIPCTarget(offer.memory, offer.form, pool, engine)
