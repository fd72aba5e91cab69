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
from lmpool.gpu.paths.ends import open_source, open_target
from lmpool.gpu.paths.group import has_nccl
from lmpool.gpu.paths.port import CopyOrder, CopyWatch, PathKind, PathSettings
from lmpool.gpu.paths.trial import (
    ColdCaches,
    KnownBytes,
    PlainCopies,
    PoolOrder,
    clear,
    cold_bytes,
    cuda_devices,
    known_pool,
)

SOURCE_SEED, TARGET_SEED = 1, 2
WATCH = CopyWatch(lambda: False, lambda _: None)


class SourceEnd:
    def __init__(self, order: dict[str, Any], connected: socket.socket) -> None:
        pool = known_pool(PoolOrder(**order["source_pool"]), SOURCE_SEED)
        self._path = open_source(_settings(order), connected, pool, _engine(order))

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """The only question: this copy. Answered when the source is done with it."""
        return {"size_bytes": self._path.copy(_copy_order(question), WATCH).size_bytes}


class TargetEnd:
    def __init__(self, order: dict[str, Any], connected: socket.socket) -> None:
        self._caches = ColdCaches(order["cold_bytes"] or cold_bytes())
        self._pool = known_pool(PoolOrder(**order["target_pool"]), TARGET_SEED)
        self._twin = known_pool(
            PoolOrder(**order["source_pool"] | {"device": order["target_pool"]["device"]}), SOURCE_SEED
        )
        """Of the source's pool, for copies inside this process."""
        self._known = KnownBytes(self._twin)
        self._plain = PlainCopies(self._twin, self._pool)
        self._path = open_target(_settings(order), connected, self._pool, _engine(order))

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
                copy = partial(self._plain.flat[question["arm"]], *question["run"])
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
        equal = self._known.are_in(self._pool, order.target_blocks, order.source_blocks)
        return {"seconds": seconds, "size_bytes": copied.size_bytes, "is_equal": equal}


def _settings(order: dict[str, Any]) -> PathSettings:
    return PathSettings(PathKind(order["path"]), Path(order["folder"]), "pair")


def _engine(order: dict[str, Any]) -> CudaDriver | None:
    return CudaDriver() if order["path"] == PathKind.CUDA_IPC.value else None


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
    connected = socket.socket(fileno=int(sys.argv[3]))
    end = (SourceEnd if sys.argv[1] == "source" else TargetEnd)(order, connected)
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(end.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
