"""How a source tells a target what its pool is: some facts as JSON, and for shared memory its descriptor.

Facts are checked one by one; nothing here is executed, and nothing is believed that the memory itself contradicts.
"""

import json
import os
import socket
import struct
from typing import Any

import attrs

from lmpool.gpu.kv_pool import KVPool
from lmpool.gpu.paths.cuda_driver import HANDLE_BYTES, CopyEngine
from lmpool.gpu.paths.cuda_ipc import DeviceMemory, device_memory
from lmpool.gpu.paths.planes import pool_form
from lmpool.gpu.paths.port import CopyRefused, PathError, PathKind, PoolForm
from lmpool.gpu.paths.shared_memory import readable_descriptor

_LENGTH = struct.Struct("<I")
OFFER_BYTES_MAX = 4096
NUMBER_MAX = 1 << 40


@attrs.frozen
class PoolOffer:
    kind: PathKind
    form: PoolForm
    memory: DeviceMemory | None
    """For CUDA IPC."""


def encode_offer(offer: PoolOffer) -> bytes:
    facts = attrs.asdict(offer.form) | {"path": offer.kind.value}
    if offer.memory is not None:
        facts |= {"handle": offer.memory.handle.hex(), "offset": offer.memory.offset}
    return json.dumps(facts).encode()


def decode_offer(data: bytes) -> PoolOffer:
    """Raises CopyRefused."""
    try:
        facts = json.loads(data)
        kind = PathKind(facts.pop("path"))
        form = PoolForm(**{field.name: _fact(facts, field.name) for field in attrs.fields(PoolForm)})
        memory = None
        if kind is PathKind.CUDA_IPC:
            memory = DeviceMemory(bytes.fromhex(facts.pop("handle")), _number(facts.pop("offset"), 0))
            if len(memory.handle) != HANDLE_BYTES:
                raise ValueError("a handle of another length")
        if facts:
            raise ValueError(f"nobody knows {', '.join(facts)}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CopyRefused(f"the peer's offer of its pool makes no sense: {error}") from error
    return PoolOffer(kind, form, memory)


def _fact(facts: dict[str, Any], name: str) -> Any:
    value = facts.pop(name)
    if name != "dtype":
        return _number(value, 1)
    if not isinstance(value, str):
        raise TypeError("dtype is no text")
    return value


def _number(value: object, least: int) -> int:
    if type(value) is not int or not least <= value <= NUMBER_MAX:
        raise ValueError(f"{value!r} is no number from {least} to {NUMBER_MAX}")
    return value


def send_offer(connected: socket.socket, kind: PathKind, pool: KVPool, engine: CopyEngine | None) -> None:
    """`engine` is needed for CUDA IPC. Blocks as long as the socket's timeout. Raises PathError."""
    memory = None
    if kind is PathKind.CUDA_IPC:
        assert engine is not None
        memory = device_memory(pool, engine)
    descriptors = [readable_descriptor(pool)] if kind is PathKind.SHARED_MEMORY else []
    body = encode_offer(PoolOffer(kind, pool_form(pool), memory))
    whole = _LENGTH.pack(len(body)) + body
    try:
        sent = socket.send_fds(connected, [whole], descriptors)
        if sent < len(whole):  # a receiver that has everything may have hung up, and nothing cannot be sent to it
            connected.sendall(whole[sent:])
    except OSError as error:
        raise PathError(f"the offer of a pool was not sent: {error}") from error
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def receive_offer(connected: socket.socket) -> tuple[PoolOffer, int | None]:
    """The offer; for shared memory with its descriptor, which is the caller's from here on. Raises PathError."""
    descriptors: list[int] = []
    try:
        head, descriptors, _, _ = socket.recv_fds(connected, _LENGTH.size, 1)
        if not head:
            raise CopyRefused("the peer has ended before it offered its pool")
        length = _LENGTH.unpack(head + _rest(connected, _LENGTH.size - len(head)))[0]
        if length > OFFER_BYTES_MAX:
            raise CopyRefused(f"the peer's offer of its pool has {length} bytes")
        offer = decode_offer(_rest(connected, length))
        if len(descriptors) != (1 if offer.kind is PathKind.SHARED_MEMORY else 0):
            raise CopyRefused(f"the peer's offer of {offer.kind.value} came with {len(descriptors)} descriptors")
    except (OSError, PathError) as error:
        for descriptor in descriptors:
            os.close(descriptor)
        if isinstance(error, PathError):
            raise
        raise PathError(f"the offer of a pool was not received: {error}") from error
    return offer, descriptors[0] if descriptors else None


def _rest(connected: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connected.recv(size - len(found))
        if not part:
            raise CopyRefused("the peer has ended in the middle of its offer")
        found += part
    return found
