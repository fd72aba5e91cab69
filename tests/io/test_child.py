"""A child's end of its channel, and what ends a child."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from lmpool.io.channel import Lines, decode_notice, encode_line
from lmpool.io.child import ORPHANED, ChildEnd, drain_ordered
from lmpool.io.orders import Beat, Drain, Failed, Notice, Progress
from tests.io.loops import Run, on_both_loops
from tests.io.test_channel import WORKER

WAIT_S = 20


@contextmanager
def channel() -> Iterator[tuple[socket.socket, ChildEnd, threading.Event]]:
    """The supervisor's socket, the child's end, and whether that has been told that its parent is gone."""
    parent, child = socket.socketpair()
    orphaned = threading.Event()
    with parent, child:
        yield parent, ChildEnd(child, orphaned.set), orphaned
        parent.shutdown(socket.SHUT_RDWR)
        assert orphaned.wait(WAIT_S)


def notices(parent: socket.socket, count: int) -> list[Notice]:
    lines = Lines(1 << 16)
    found: list[Notice] = []
    while len(found) < count:
        data = parent.recv(1 << 16)
        assert data
        found += map(decode_notice, lines.feed(data))
    return found


def test_the_order_comes_in_and_notices_go_out() -> None:
    with channel() as (parent, end, _):
        parent.sendall(encode_line(WORKER))
        assert end.order() == WORKER
        end.note(Progress("loading"))
        end.note(Beat(working=False, steps=0))
        assert notices(parent, 2) == [Progress("loading"), Beat(working=False, steps=0)]


def test_notices_of_many_threads_do_not_mix() -> None:
    with channel() as (parent, end, _):
        texts = [Progress(str(number) * 200) for number in range(8)]

        def speak(text: Progress) -> None:
            for _ in range(20):
                end.note(text)

        threads = [threading.Thread(target=speak, args=(text,)) for text in texts]
        for thread in threads:
            thread.start()
        heard = notices(parent, 160)
        for thread in threads:
            thread.join()
        assert all(heard.count(text) == 20 for text in texts)


def test_noting_to_nobody_is_no_error() -> None:
    parent, child = socket.socketpair()
    orphaned = threading.Event()
    with child:
        end = ChildEnd(child, orphaned.set)
        parent.close()
        assert orphaned.wait(WAIT_S)
        end.note(Progress("nobody hears this"))


def test_an_unknown_order_is_as_bad_as_no_parent() -> None:
    with channel() as (parent, _, orphaned):
        parent.sendall(b'{"kind":"Dance"}\n')
        assert orphaned.wait(WAIT_S)


@on_both_loops
def test_a_drain_reaches_the_loop(run: Run) -> None:
    async def body(parent: socket.socket, end: ChildEnd) -> None:
        drain = drain_ordered(end)
        parent.sendall(encode_line(Drain(1.5)))
        parent.sendall(encode_line(Drain(0.5)))
        assert await asyncio.wait_for(drain, WAIT_S) == Drain(1.5)

    with channel() as (parent, end, _):
        run(body(parent, end))


@on_both_loops
def test_a_drain_that_came_first_is_not_missed(run: Run) -> None:
    async def body(end: ChildEnd) -> None:
        assert await asyncio.wait_for(drain_ordered(end), WAIT_S) == Drain(1.0)

    with channel() as (_, end, _):
        end.drain(Drain(1.0))
        run(body(end))


PROGRAM = """
import asyncio, socket, sys, time
from lmpool.core.plan import ReplicaError
from lmpool.io.child import drain_ordered, open_channel, run_child
from lmpool.io.orders import Progress
channel = open_channel(int(sys.argv[1]))
async def wait():
    drain = drain_ordered(channel)
    channel.note(Progress("here"))
    channel.note(Progress(f"{(await drain).seconds}"))
async def linger():
    drain = drain_ordered(channel)
    channel.note(Progress("here"))
    await drain
    channel.note(Progress("draining"))
    await asyncio.Future()
async def spin():
    channel.note(Progress("here"))
    while True: pass
async def fail():
    raise ReplicaError("no such device", "name another")
async def crash():
    assert 1 == 2, "numbers differ"
sys.exit(run_child(channel, {"wait": wait, "linger": linger, "spin": spin, "fail": fail, "crash": crash}[sys.argv[2]]))
"""


@contextmanager
def child(body: str) -> Iterator[tuple[socket.socket, "subprocess.Popen[bytes]"]]:
    parent, theirs = socket.socketpair()
    parent.settimeout(WAIT_S)
    arguments = [sys.executable, "-c", PROGRAM, str(theirs.fileno()), body]
    with parent, subprocess.Popen(arguments, pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE) as process:
        theirs.close()
        try:
            yield parent, process
        finally:
            process.kill()


@pytest.mark.parametrize("body", ["wait", "spin"])
def test_a_child_ends_when_its_parent_is_gone_however_busy_it_is(body: str) -> None:
    with child(body) as (parent, process):
        assert notices(parent, 1) == [Progress("here")]
        parent.close()
        assert process.wait(WAIT_S) == ORPHANED


@pytest.mark.parametrize("line", [b"\xff\x00\n", b'{"kind":"Drain","seconds":"soon"}\n', b"x" * (2 << 20)])
def test_a_child_that_is_told_nonsense_ends_itself(line: bytes) -> None:
    """Its parent is of another version, or broken: nothing that it has in hand is worth more than a fresh start."""
    with child("wait") as (parent, process):
        notices(parent, 1)
        with suppress(ConnectionError):
            parent.sendall(line)
        assert process.wait(WAIT_S) == ORPHANED


def test_term_asks_for_a_drain_and_int_is_the_supervisors() -> None:
    with child("wait") as (parent, process):
        notices(parent, 1)
        os.kill(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGTERM)
        assert notices(parent, 1) == [Progress("30.0")]
        assert process.wait(WAIT_S) == 0


def test_a_second_term_ends_a_child_at_once() -> None:
    with child("linger") as (parent, process):
        notices(parent, 1)
        process.terminate()
        assert notices(parent, 1) == [Progress("draining")]
        process.terminate()
        assert process.wait(WAIT_S) == -signal.SIGTERM


def test_a_refusal_is_noted_in_its_own_words() -> None:
    with child("fail") as (parent, process):
        assert notices(parent, 1) == [Failed("no such device", "name another")]
        assert process.wait(WAIT_S) == 1


def test_a_bug_is_noted_and_its_trace_logged() -> None:
    with child("crash") as (parent, process):
        (failed,) = notices(parent, 1)
        assert isinstance(failed, Failed)
        assert failed.what == "AssertionError: numbers differ"
        assert process.wait(WAIT_S) == 1
        assert process.stderr is not None
        assert b"in crash" in process.stderr.read()
