"""The few calls of the CUDA driver that CUDA IPC needs, by ctypes, after the CUDA driver API's documentation.

Not run on hardware yet. Torch's own sharing of CUDA tensors is not used: it counts references in named shared memory,
which a killed process leaves behind.
"""

import ctypes
from typing import Protocol

import attrs

from lmpool.gpu.paths.port import CopyRefused, PathError

HANDLE_BYTES = 64
PITCH_MAX = (1 << 31) - 1
"""Of one two-dimensional copy, as CU_DEVICE_ATTRIBUTE_MAX_PITCH has it on all devices that are documented."""

_LAZY_PEER_ACCESS = 1
_MEMORY_UNIFIED = 4


@attrs.frozen
class Rectangle:
    """`rows` rows of `width` bytes between two device addresses; the rows of each are `pitch` bytes apart."""

    source: int
    source_pitch: int
    target: int
    target_pitch: int
    width: int
    rows: int


class CopyEngine(Protocol):
    def memory_handle(self, address: int) -> tuple[bytes, int]:
        """Of the allocation that holds `address`, and how far into it that is. Raises PathError, as on expandable
        segments of torch's allocator, which have no such handle."""
        ...

    def open_handle(self, handle: bytes) -> tuple[int, int]:
        """Where the peer's allocation is in this process, and its size. Raises CopyRefused."""
        ...

    def close_handle(self, address: int) -> None: ...

    def copy(self, rectangle: Rectangle, stream: int) -> None:
        """Queues it on the stream. Raises PathError."""
        ...


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (
        ("srcXInBytes", ctypes.c_size_t),
        ("srcY", ctypes.c_size_t),
        ("srcMemoryType", ctypes.c_uint),
        ("srcHost", ctypes.c_void_p),
        ("srcDevice", ctypes.c_uint64),
        ("srcArray", ctypes.c_void_p),
        ("srcPitch", ctypes.c_size_t),
        ("dstXInBytes", ctypes.c_size_t),
        ("dstY", ctypes.c_size_t),
        ("dstMemoryType", ctypes.c_uint),
        ("dstHost", ctypes.c_void_p),
        ("dstDevice", ctypes.c_uint64),
        ("dstArray", ctypes.c_void_p),
        ("dstPitch", ctypes.c_size_t),
        ("WidthInBytes", ctypes.c_size_t),
        ("Height", ctypes.c_size_t),
    )


class CudaDriver:
    """`CopyEngine`. The calling thread must have torch's context of its device current."""

    def __init__(self) -> None:
        """Raises CopyRefused."""
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CopyRefused(f"the CUDA driver cannot be loaded: {error}") from error

    def memory_handle(self, address: int) -> tuple[bytes, int]:
        base, _ = self._allocation(address)
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(base))
        return bytes(handle), address - base

    def open_handle(self, handle: bytes) -> tuple[int, int]:
        address = ctypes.c_uint64()
        structure = _Handle.from_buffer_copy(handle)
        try:
            self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), structure, ctypes.c_uint(_LAZY_PEER_ACCESS))
        except PathError as error:
            raise CopyRefused(f"the peer's device memory cannot be opened: {error}") from error
        return self._allocation(address.value)

    def close_handle(self, address: int) -> None:
        self._call("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def copy(self, rectangle: Rectangle, stream: int) -> None:
        order = _Copy2D(
            srcMemoryType=_MEMORY_UNIFIED,
            srcDevice=rectangle.source,
            srcPitch=rectangle.source_pitch,
            dstMemoryType=_MEMORY_UNIFIED,
            dstDevice=rectangle.target,
            dstPitch=rectangle.target_pitch,
            WidthInBytes=rectangle.width,
            Height=rectangle.rows,
        )
        self._call("cuMemcpy2DAsync_v2", ctypes.byref(order), ctypes.c_void_p(stream))

    def _allocation(self, address: int) -> tuple[int, int]:
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
        return base.value, size.value

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            raise PathError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")
