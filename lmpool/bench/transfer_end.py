"""One end of a measured pair, in a process of its own, which `transfer_pair.py` starts and asks.

One JSON line a question on standard input, one line a reply. It ends with its input.
"""

import json
import os
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from lmpool.gpu.paths.cuda_driver import CudaDriver
from lmpool.gpu.paths.cuda_ipc import CudaIPCTarget
from lmpool.gpu.paths.group import has_nccl
from lmpool.gpu.paths.offer import receive_offer, send_offer
from lmpool.gpu.paths.pair_link import PairSettings
from lmpool.gpu.paths.pair_source import PairSource
from lmpool.gpu.paths.pair_target import PairTarget
from lmpool.gpu.paths.port import CopyOrder, CopyWatch, DataPath, PathKind
from lmpool.gpu.paths.shared_memory import SharedMemoryTarget
from lmpool.gpu.paths.trial import (
    ColdCaches,
    PlainCopies,
    PoolOrder,
    clear,
    cold_bytes,
    cuda_devices,
    is_equal,
    known_pool,
)

SOURCE_SEED, TARGET_SEED = 1, 2
OFFER_S = 120.0
WATCH = CopyWatch(lambda: False, lambda _: None)
PAIRED = (PathKind.GLOO, PathKind.NCCL)


class SourceEnd:
    def __init__(self, order: dict[str, Any], offers: socket.socket, frames: socket.socket) -> None:
        kind = PathKind(order["path"])
        self._pool = known_pool(PoolOrder(**order["source_pool"]), SOURCE_SEED)
        self._pair = PairSource(_pair_settings(order), frames, self._pool) if kind in PAIRED else None
        if self._pair is None:
            send_offer(offers, self._pool, CudaDriver() if kind is PathKind.CUDA_IPC else None)

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """The only question: serve this copy. Answered when the source is done with it."""
        assert self._pair is not None
        return {"size_bytes": self._pair.copy(_copy_order(question), WATCH).size_bytes}


class TargetEnd:
    def __init__(self, order: dict[str, Any], offers: socket.socket, frames: socket.socket) -> None:
        self._caches = ColdCaches(order["cold_bytes"] or cold_bytes())
        self._pool = known_pool(PoolOrder(**order["target_pool"]), TARGET_SEED)
        self._twin = known_pool(
            PoolOrder(**order["source_pool"] | {"device": order["target_pool"]["device"]}), SOURCE_SEED
        )
        """Of the source's pool, for copies inside this process, and to compare with."""
        self._plain = PlainCopies(self._twin, self._pool)
        self._path = self._opened(order, offers, frames)

    def _opened(self, order: dict[str, Any], offers: socket.socket, frames: socket.socket) -> DataPath:
        kind = PathKind(order["path"])
        if kind in PAIRED:
            return PairTarget(_pair_settings(order), frames, self._pool)
        offers.settimeout(OFFER_S)
        offer, descriptor = receive_offer(offers)
        if kind is PathKind.CUDA_IPC:
            assert offer.memory is not None
            return CudaIPCTarget(offer.memory, offer.form, self._pool, CudaDriver())
        assert descriptor is not None
        path = SharedMemoryTarget(descriptor, offer.form, self._pool)
        os.close(descriptor)
        return path

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        match question["do"]:
            case "arms":
                cold = self._caches.size_bytes
                return {"indexed": list(self._plain.indexed), "flat": list(self._plain.flat), "cold_bytes": cold}
            case "path":
                return self._timed_path(_copy_order(question))
            case "indexed":
                copy = partial(self._plain.indexed[question["arm"]], question["source"], question["target"])
            case "flat":
                copy = partial(self._plain.flat[question["arm"]], len(question["source"]))
            case _:
                raise ValueError(question)
        self._caches.evict()
        began = time.perf_counter()
        self._plain.run(copy)
        return {"seconds": time.perf_counter() - began}

    def _timed_path(self, order: CopyOrder) -> dict[str, Any]:
        clear(self._pool, order.target_blocks)
        self._caches.evict()
        began = time.perf_counter()
        copied = self._path.copy(order, WATCH)
        seconds = time.perf_counter() - began
        equal = is_equal(self._pool, order.target_blocks, self._twin, order.source_blocks)
        return {"seconds": seconds, "size_bytes": copied.size_bytes, "is_equal": equal}


def _pair_settings(order: dict[str, Any]) -> PairSettings:
    return PairSettings(PathKind(order["path"]), Path(order["folder"]), "pair")


def _copy_order(question: dict[str, Any]) -> CopyOrder:
    return CopyOrder(
        transfer=(1, question["transfer"]),
        source_blocks=tuple(question["source"]),
        target_blocks=tuple(question["target"]),
        chunk_bytes=question["chunk_bytes"],
        is_summed=question["is_summed"],
        timeout_s=question["timeout_s"],
    )


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print must not end up among the answers
    if sys.argv[1] == "facts":
        print(json.dumps({"cuda_devices": cuda_devices(), "has_nccl": has_nccl()}), file=answers)
        return
    order = json.loads(sys.argv[2])
    offers, frames = (socket.socket(fileno=int(number)) for number in sys.argv[3:5])
    end = (SourceEnd if sys.argv[1] == "source" else TargetEnd)(order, offers, frames)
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(end.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
