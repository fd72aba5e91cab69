"""A server of our own as a child process, and a batch of streams sent to it by a plain HTTP client."""

import asyncio
import json
import sys
from types import TracebackType

import httpx

from lmpool.bench.workloads import Batch


class BenchServer:
    """`async with BenchServer(flags) as server`: up to its `ready` line, ended by TERM."""

    def __init__(self, flags: list[str]) -> None:
        self._flags = flags

    async def __aenter__(self) -> "BenchServer":
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "lmpool", "serve", *self._flags, "--port", "0", stdout=asyncio.subprocess.PIPE
        )
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode()
        if not line.startswith("ready "):
            raise RuntimeError(f"the server ended with code {await self._process.wait()} before it was ready")
        self._client = httpx.AsyncClient(base_url=line.split()[1], timeout=600)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()
        self._process.terminate()
        await self._process.wait()

    async def run(self, batch: Batch, salt: str) -> int:
        """Streams all prompts at once and returns the output tokens by the server's own usage."""
        return sum(await asyncio.gather(*(self._stream(prompt, batch.output_tokens, salt) for prompt in batch.prompts)))

    async def _stream(self, prompt: tuple[int, ...], output_tokens: int, salt: str) -> int:
        body = {
            "model": (await self._client.get("/v1/models")).json()["data"][0]["id"],
            "prompt": prompt,
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_salt": salt,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        usage = 0
        async with self._client.stream("POST", "/v1/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    if event.get("usage"):
                        usage = int(event["usage"]["completion_tokens"])
        return usage
