"""The supervisor's end of a channel to a child that writes what no child of ours writes."""

import asyncio
import os
import sys

import pytest

from lmpool.io.orders import Notice, PrepareOrder, Progress
from lmpool.io.supervision.child_process import ChildProcess, Launch
from lmpool.io.supervision.fault import Told

GOOD = b'{"kind":"Progress","text":"here"}\\n'


@pytest.mark.parametrize(
    "garbage",
    [
        rb"\xff\x00\n",
        rb"[]\n",
        rb'{"kind":"Ready","facts":5}\n',
        rb'{"kind":"Drain","seconds":1.0}\n',
        b"x' * 200_000 + b'",
    ],
    ids=["bytes", "no object", "wrong field", "an order", "a line without end"],
)
def test_a_child_that_writes_nonsense_is_killed_and_told_of(garbage: bytes) -> None:
    async def body() -> None:
        told = f"b'{GOOD.decode()}' + b'{garbage.decode()}'"
        program = f"import os, sys, time; os.write(int(sys.argv[2]), {told}); time.sleep(99)"
        heard: list[Notice] = []
        order = PrepareOrder(None, "/nowhere", None)
        launch = Launch("liar", order, dict(os.environ), (), (sys.executable, "-c", program))
        child = ChildProcess(launch, heard.append, lambda line: None)
        cause = await asyncio.wait_for(child.ended, 30)
        assert heard == [Progress("here")]
        assert isinstance(cause, Told)
        assert "sent what is no notice" in cause.what

    asyncio.run(body())
