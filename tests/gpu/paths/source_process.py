"""A source in a process of its own, steered through a pipe: it fills a pool, offers it, and serves copies."""

import multiprocessing
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from lmpool.gpu.kv_pool import BlockShape, KVPool
from lmpool.gpu.paths.checksum import OneSidedSource
from lmpool.gpu.paths.offer import send_offer
from lmpool.gpu.paths.pair_source import PairSource
from lmpool.gpu.paths.planes import HostPlanes
from lmpool.gpu.paths.port import Copied, CopyOrder, PathError, PathKind, PathSettings
from tests.gpu.paths.pools import filled_pool, watch

ANSWER_S = 60.0


class Source:
    """The test's end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "source.sock"))
        self._listener.listen()
        spawn = multiprocessing.get_context("spawn")
        self._pipe, other = spawn.Pipe()
        self.process = spawn.Process(target=_main, args=(other, folder), daemon=True)
        self.process.start()
        other.close()

    def fill(self, shape: BlockShape, blocks: int, seed: int) -> None:
        self._ask("fill", shape, blocks, seed)

    def offer(self) -> socket.socket:
        """Where the offer of the pool arrives."""
        self._ask("offer")
        return self._accepted()

    def pair(self, name: str) -> socket.socket:
        """The target's end of the socket of a new pair, whose other end now waits for copies."""
        self._ask("pair", name)
        return self._accepted()

    def begin_copy(self, order: CopyOrder, cancel_from: int | None = None, die: tuple[int, int] | None = None) -> None:
        """`die`: once after so many bytes, by this signal to itself."""
        self._pipe.send(("copy", order, cancel_from, die))

    def stated(self, order: CopyOrder) -> Copied:
        """What the source of a one-sided path says of these blocks."""
        answer = self._ask("state", order)
        assert isinstance(answer, Copied)
        return answer

    def copied(self) -> Copied | str:
        """How the copy ended at the source: what it sent, or its error."""
        return self._answer()  # type: ignore[no-any-return]

    def close(self) -> None:
        with suppress(OSError):
            self._pipe.send(("end",))
        self.process.join(1)
        self.process.kill()
        self.process.join()
        self._pipe.close()
        self._listener.close()

    def _accepted(self) -> socket.socket:
        connected, _ = self._listener.accept()
        connected.settimeout(ANSWER_S)
        return connected

    def _ask(self, *question: object) -> Any:
        self._pipe.send(question)
        return self._answer()

    def _answer(self) -> Any:
        assert self._pipe.poll(ANSWER_S), "the source does not answer"
        return self._pipe.recv()


@contextmanager
def running_source(folder: Path) -> Iterator[Source]:
    source = Source(folder)
    try:
        yield source
    finally:
        source.close()


def _main(pipe: Connection, folder: Path) -> None:
    torch.set_num_threads(1)
    pool: KVPool | None = None
    pair: PairSource | None = None
    while True:
        question, *arguments = pipe.recv()
        answer: Any = None
        match question:
            case "fill":
                pool = filled_pool(*arguments)
            case "offer":
                assert pool is not None
                with _connected(folder) as connected:
                    send_offer(connected, PathKind.SHARED_MEMORY, pool, None)
            case "pair":
                assert pool is not None
                pair = PairSource(PathSettings(PathKind.GLOO, folder, arguments[0]), _connected(folder), pool)
            case "copy":
                assert pair is not None
                answer = _copied(pair, *arguments)
            case "state":
                assert pool is not None
                answer = OneSidedSource(HostPlanes(pool)).copy(arguments[0], watch())
            case _:
                return
        pipe.send(answer)


def _connected(folder: Path) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(str(folder / "source.sock"))
    return connected


def _copied(pair: PairSource, order: CopyOrder, cancel_from: int | None, die: tuple[int, int] | None) -> Copied | str:
    left = [die] if die is not None else []

    def advanced(size: int) -> None:
        if left and size >= left[0][0]:
            os.kill(os.getpid(), left.pop()[1])  # once: a source that was stopped goes on

    try:
        return pair.copy(order, watch(cancel_from, advanced))
    except PathError as error:
        return f"{type(error).__name__}: {error}"
