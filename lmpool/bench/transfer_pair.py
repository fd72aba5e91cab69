"""Two processes with a data path between them, and the copies that they are asked for, one at a time."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypeAlias

import attrs

from lmpool.gpu.paths.port import PathKind
from lmpool.io.supervision.computing import computing_environment
from lmpool.io.topology import RankPair, all_pairs, cuda_pairs, listed_pairs, run_smi

Blocks: TypeAlias = tuple[int, ...]

TIMEOUT_S = 120.0
END_S = 10.0
MODULE = "lmpool.bench.transfer_end"
ON_CUDA = (PathKind.CUDA_IPC.value, PathKind.NCCL.value)


@attrs.frozen
class PairOrder:
    path: str
    source_pool: dict[str, Any]
    """Fields of `gpu.paths.trial.PoolOrder`."""
    target_pool: dict[str, Any]
    threads: int
    chunk_bytes: int
    is_summed: bool
    cold_bytes: int | None
    """Read before each copy, so that its source is in no cache; None: as this machine needs."""


@attrs.frozen
class Arms:
    """Names of the copies inside one process."""

    indexed: tuple[str, ...]
    flat: tuple[str, ...]
    cold_bytes: int


class WrongBytes(Exception):  # noqa: N818 (says it better without Error)
    """What arrived is not what the source holds."""


class MeasuredPair:
    """Starts both ends; ends them with its block."""

    def __init__(self, order: PairOrder) -> None:
        self._order = order
        self._stack = ExitStack()
        self._transfer = 0

    def __enter__(self) -> "MeasuredPair":
        with self._stack:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="lmpool-bench-"))
            sockets = [self._stack.enter_context(end) for end in socket.socketpair()]
            words = attrs.asdict(self._order) | {"folder": folder}
            self._source, self._target = (
                self._started(role, words, end) for role, end in zip(("source", "target"), sockets, strict=True)
            )
            for end in sockets:
                end.close()
            _line(self._source)
            _line(self._target)
            arms = self._asked({"do": "arms"})
            self.arms = Arms(tuple(arms["indexed"]), tuple(arms["flat"]), arms["cold_bytes"])
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def path_s(self, source: Blocks, target: Blocks) -> float:
        """Of one copy by the path. Raises WrongBytes."""
        self._transfer += 1
        question = {
            "do": "path",
            "transfer": self._transfer,
            "source": source,
            "target": target,
            "chunk_bytes": self._order.chunk_bytes,
            "is_summed": self._order.is_summed,
            "timeout_s": TIMEOUT_S,
        }
        _say(self._source, question)
        answer = self._asked(question)
        _line(self._source)
        if not answer["is_equal"]:
            raise WrongBytes(f"{self._order.path}: {len(source)} blocks have arrived with other bytes")
        return float(answer["seconds"])

    def indexed_s(self, arm: str, source: Blocks, target: Blocks) -> float:
        return float(self._asked({"do": "indexed", "arm": arm, "source": source, "target": target})["seconds"])

    def flat_s(self, arm: str, source: int, target: int, blocks: int) -> float:
        """From and to the bytes of these blocks on, if planes were not there."""
        return float(self._asked({"do": "flat", "arm": arm, "run": (source, target, blocks)})["seconds"])

    def _asked(self, question: dict[str, Any]) -> dict[str, Any]:
        _say(self._target, question)
        return _line(self._target)

    def _started(self, role: str, words: dict[str, Any], connected: socket.socket) -> "subprocess.Popen[str]":
        number = connected.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, role, json.dumps(words), str(number)],
            env=computing_environment(os.environ, self._order.threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[number],
            process_group=0,  # an interruption is for this process, which ends its input
            text=True,
        )
        self._stack.callback(_end, process)
        return process


def device_facts() -> dict[str, Any]:
    """What torch sees here, asked in a process of its own."""
    done = subprocess.run([sys.executable, "-m", MODULE, "facts"], stdout=subprocess.PIPE, check=True, text=True)
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def absence(path: str, facts: dict[str, Any]) -> str | None:
    """Why a path is not here, by the facts of `device_facts`."""
    if path not in ON_CUDA:
        return None
    if facts["cuda_devices"] < 2:
        return f"it needs two CUDA devices, and torch sees {facts['cuda_devices']}"
    if path == PathKind.NCCL.value and not facts["has_nccl"]:
        return "torch is built without NCCL"
    return None


def path_pairs(path: str, listed: str | None, replicas: int) -> tuple[RankPair, ...]:
    """As listed, or all that have the path. Raises TopologyError."""
    if listed is not None:
        return listed_pairs(listed, replicas)
    return cuda_pairs(replicas, os.environ, run_smi) if path in ON_CUDA else all_pairs(replicas)


def _say(process: "subprocess.Popen[str]", question: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()


def _line(process: "subprocess.Popen[str]") -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"an end of the pair has ended with code {process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _end(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
