"""Clients that play a trace against a server: one in this process, or several in processes of their own.

A child reads an order as one JSON line, says `ready`, reads the moment at which the trace begins (all processes of a
machine have one monotonic clock), says `ended` at the end of each request, and at last what it measured.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import attrs
import cattrs
import httpx
import uvloop
from tokenizers import Tokenizer

from lmpool.bench.load.contents import ProseTexts, RandomTokens, prepare, token_counter
from lmpool.bench.load.http import CONNECT_S, Dialect, HTTPEndpoint
from lmpool.bench.load.measured import Measured
from lmpool.bench.load.player import Player
from lmpool.core.ids import MILLISECOND, SECOND, Nanos
from lmpool.io.clock import monotonic_now
from lmpool.sim.trace import Trace, part_of
from lmpool.sim.trace_formats import read_trace, write_trace

LEAD_NS = Nanos(200 * MILLISECOND)
"""Until the first request may be due."""
CHILDREN_LEAD_NS = Nanos(SECOND)
"""The same for processes that are ready but not warm."""
LINE_BYTES_MAX = 1 << 30
"""Of what a child measured: some hundred bytes a token."""


Contents: TypeAlias = ProseTexts | RandomTokens


class LoadError(Exception):
    """One line: why a run cannot be."""


@attrs.frozen
class Target:
    """A server, and how it is spoken to."""

    url: str
    model: str
    key: str | None = attrs.field(repr=False)
    dialect: Dialect
    tokenizer: str | None
    """A file, for texts of exact lengths."""
    vocabulary: int | None
    """None: chats, in English. Else completions of random token ids below it."""
    contents_seed: int
    patience_s: float
    """Between two bytes of an answer, at most."""

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.url,
            headers={} if self.key is None else {"authorization": f"Bearer {self.key}"},
            timeout=httpx.Timeout(self.patience_s, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )

    def contents(self) -> ProseTexts | RandomTokens:
        """Raises LoadError."""
        if self.vocabulary is not None:
            return RandomTokens(self.vocabulary, self.contents_seed)
        if self.tokenizer is None:
            return ProseTexts(None, self.contents_seed)
        try:
            return ProseTexts(token_counter(Tokenizer.from_file(self.tokenizer)), self.contents_seed)
        except Exception as error:  # `tokenizers` raises nothing more special
            raise LoadError(f"cannot read the tokenizer {self.tokenizer}: {error}") from error


@attrs.frozen
class Played:
    measured: list[Measured]
    stalls_ns: list[int]


def shares(trace: Trace, count: int) -> list[tuple[Trace, list[int]]]:
    """The trace cut among so many clients, session by session, each with the numbers of its requests.

    Raises LoadError where clients would have to know of each other.
    """
    if trace.requests[-1].stage:
        raise LoadError("stages wait for each other: a trace with stages needs one process")
    bound = trace.in_flight_max
    if bound is not None and bound < count:
        raise LoadError(f"{bound} requests in flight cannot be shared by {count} processes")
    roots: list[int] = []
    firsts = 0
    for request in trace.requests:
        roots.append(firsts if request.continues is None else roots[request.continues])
        firsts += request.continues is None
    cut = [part_of(trace, lambda number, at=at: roots[number] % count == at) for at in range(count)]  # type: ignore[misc]
    if not all(numbers for _, numbers in cut):
        raise LoadError(f"{firsts} sessions cannot be shared by {count} processes")
    if bound is None:
        return cut
    rooms = [bound // count + (at < bound % count) for at in range(count)]
    return [(attrs.evolve(part, in_flight_max=room), numbers) for (part, numbers), room in zip(cut, rooms, strict=True)]


async def play(trace: Trace, target: Target, contents: Contents, processes: int, on_end: Callable[[], None]) -> Played:
    """`contents`: those of the target. `on_end` is called once for each request. Raises LoadError."""
    if target.vocabulary is not None and any(request.continues is not None for request in trace.requests):
        raise LoadError("answers over HTTP are texts: sessions of several turns can only be asked as chats")
    if processes > 1:
        return await _play_in_children(trace, target, processes, on_end)
    prepare(contents, trace)
    return await _play_here(trace, target, contents, None, on_end)


async def _play_here(
    trace: Trace, target: Target, contents: Contents, begin_ns: Nanos | None, on_end: Callable[[], None]
) -> Played:
    """`begin_ns`: None is as soon as this client is warm."""
    async with target.client() as client:
        await _warm(client)
        endpoint = HTTPEndpoint(client, target.model, contents, target.dialect, monotonic_now)
        is_forced = target.dialect is Dialect.EXTENDED
        player = Player(trace, endpoint, monotonic_now, lambda _: on_end(), is_forced=is_forced)
        begin_ns = Nanos(monotonic_now() + LEAD_NS) if begin_ns is None else begin_ns
        return Played(await player.run(begin_ns), player.stalls_ns)


async def _warm(client: httpx.AsyncClient) -> None:
    """What a first request takes in this process is not the server's; nor is it of interest whether it is answered."""
    with suppress(httpx.HTTPError):
        await client.get("/v1/models", timeout=CONNECT_S)


async def _play_in_children(trace: Trace, target: Target, processes: int, on_end: Callable[[], None]) -> Played:
    cut = shares(trace, processes)
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{place}.jsonl" for place in range(processes)]
        for path, (part, _) in zip(paths, cut, strict=True):
            write_trace(part, path)
        children = [await _Child.start(target, path) for path in paths]
        try:
            for child in children:
                await child.ready()
            begin_ns = Nanos(monotonic_now() + CHILDREN_LEAD_NS)
            played = await asyncio.gather(*(child.play(begin_ns, on_end) for child in children))
        finally:
            for child in children:
                await child.close()
    measured = [
        attrs.evolve(one, number=numbers[one.number])
        for (_, numbers), share in zip(cut, played, strict=True)
        for one in share.measured
    ]
    stalls = [stall for share in played for stall in share.stalls_ns]
    return Played(sorted(measured, key=lambda one: one.number), stalls)


class _Child:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, target: Target, path: Path) -> "_Child":
        child = cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "lmpool.bench.load.client",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LINE_BYTES_MAX,
            )
        )
        await child._say(json.dumps({"trace": str(path), "target": cattrs.unstructure(target)}))
        return child

    async def ready(self) -> None:
        """Raises LoadError."""
        if await self._line() != "ready":
            raise LoadError("a client process ended before it was ready")

    async def play(self, begin_ns: Nanos, on_end: Callable[[], None]) -> Played:
        """Raises LoadError."""
        await self._say(str(begin_ns))
        while (line := await self._line()) == "ended":
            on_end()
        if not line:
            raise LoadError("a client process ended in mid-run")
        return cattrs.structure(json.loads(line), Played)

    async def close(self) -> None:
        """Nothing of it is wanted any more."""
        if self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()

    async def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        await self._process.stdin.drain()

    async def _line(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().rstrip("\n")


def main(lines: Sequence[str] | None = None) -> int:
    """The child. An end of input before the begin ends it."""
    given = iter(sys.stdin if lines is None else lines)
    order = json.loads(next(given))
    target = cattrs.structure(order["target"], Target)
    trace = read_trace(Path(order["trace"]), None)
    try:
        contents = target.contents()
    except LoadError as error:
        print(error, file=sys.stderr)
        return 1
    prepare(contents, trace)
    print("ready", flush=True)
    begin = next(given, None)
    if begin is None:
        return 1
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        played = runner.run(_play_here(trace, target, contents, Nanos(int(begin)), lambda: print("ended", flush=True)))
    print(json.dumps(cattrs.unstructure(played)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
