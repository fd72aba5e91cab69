"""What the CUDA driver does for CUDA IPC, on memory of this process."""

import ctypes

from lmpool.gpu.paths.cuda_driver import Rectangle

OFFSET = 512


class HostEngine:
    """`CopyEngine` on host addresses; a handle is an address."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.copies = 0
        self.held = 1 << 30

    def memory_handle(self, address: int) -> tuple[bytes, int]:
        return (address - OFFSET).to_bytes(64, "little"), OFFSET

    def open_handle(self, handle: bytes) -> tuple[int, int]:
        self.opened.append(int.from_bytes(handle, "little"))
        return self.opened[-1], self.held

    def close_handle(self, address: int) -> None:
        self.opened.remove(address)

    def copy(self, rectangle: Rectangle, stream: int) -> None:
        self.copies += 1
        for row in range(rectangle.rows):
            target = rectangle.target + row * rectangle.target_pitch
            ctypes.memmove(target, rectangle.source + row * rectangle.source_pitch, rectangle.width)
