"""What one end of a pair keeps between copies: the socket for frames, and the group for payloads.

A group that broke is made anew by the next copy, so a fault ends one transfer and not the pair.
"""

import socket

import torch

from lmpool.gpu.kv_pool import KVPool
from lmpool.gpu.paths.deadline import Deadline
from lmpool.gpu.paths.frames import WINDOW, Frame, FrameKind, FrameSocket
from lmpool.gpu.paths.group import PairGroup
from lmpool.gpu.paths.planes import DevicePlanes, HostPlanes, Planes
from lmpool.gpu.paths.port import CopyOrder, CopyRefused, CopyWatch, PathError, PathKind, PathSettings


class SourceEnded(PathError):  # noqa: N818 (says it better without Error)
    """The source's last word on a transfer."""


class PairLink:
    def __init__(self, settings: PathSettings, connected: socket.socket, pool: KVPool, own: int) -> None:
        """Takes the socket over; `own` is the rank in groups. Raises CopyRefused."""
        on_cpu = pool.tensor.device.type == "cpu"
        if settings.kind is PathKind.NCCL and on_cpu:
            raise CopyRefused("NCCL copies between CUDA devices, and this pool is in host memory")
        device = None if on_cpu else DevicePlanes(pool, is_staged_on_host=settings.kind is PathKind.GLOO)
        self.planes: Planes = device or HostPlanes(pool)
        self._stream = device.stream if device else None
        self._settings = settings
        self._own = own
        self._frames = FrameSocket(connected)
        self._group: PairGroup | None = None
        self._stages: list[torch.Tensor] = []
        self.number = 0
        """Of the group, or of the last one."""

    @property
    def usable(self) -> int:
        """Number of the group that this end still has; 0: none."""
        return self.number if self._group is not None else 0

    def stages(self, size_bytes: int) -> list[torch.Tensor]:
        """One for each chunk of the window, kept from copy to copy: fresh pages would cost as much as a chunk."""
        if not self._stages or self._stages[0].numel() < size_bytes:
            self._stages = [self.planes.stage(size_bytes) for _ in range(WINDOW)]
        return self._stages

    def meet(self, number: int) -> PairGroup:
        """The group of that number, which both ends have agreed on. Raises PathError."""
        if self._group is None or number != self.number:
            self.drop()
            self.number = number
            meeting = self._settings.folder / f"{self._settings.name}-{number}"
            self._group = PairGroup(self._settings.kind, meeting, self._own, self._stream)
        return self._group

    def send(self, frame: Frame, deadline: Deadline) -> None:
        """Raises PathError."""
        self._frames.send(frame, deadline)

    def receive(self, order: CopyOrder, deadline: Deadline, watch: CopyWatch) -> Frame:
        """Raises PathError; SourceEnded where that is what the source says."""
        frame = self._frames.receive(order.transfer, deadline, watch)
        if frame.kind is FrameKind.ENDED:
            raise SourceEnded(f"the source has ended transfer {order.transfer}")
        return frame

    def drop(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    def close(self) -> None:
        self.drop()
        self._frames.close()
