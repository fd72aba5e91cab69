"""A peer that runs in a process of its own, so that it can alternate with others in one run.

One JSON line a question: `{"how": "continuous" or "static", "prompts": [[...]], "output_tokens": n}`, answered by
`{"seconds": s, "output_tokens": n, "tokens": [[...]]}`. The peer loads its model once and is idle between questions.
"""

import asyncio
import json
import os
import sys
from typing import Any

from lmpool.bench.workloads import Batch


class Peer:
    """Parent's end of the peer process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, folder: str, dtype: str, threads: int) -> "Peer":
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads), HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "lmpool.bench.peers",
            folder,
            dtype,
            str(threads),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            limit=1 << 26,
        )
        peer = cls(process)
        await peer._line()
        return peer

    async def run(self, how: str, batch: Batch) -> dict[str, Any]:
        """`how` is `continuous` (generate_batch) or `static` (generate on one padded batch)."""
        question = {"how": how, "prompts": batch.prompts, "output_tokens": batch.output_tokens}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        await self._process.stdin.drain()
        return await self._line()

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    async def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the transformers peer ended with code {await self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer
