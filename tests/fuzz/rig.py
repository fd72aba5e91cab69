"""Real processes with the integer model: control, two workers and an ingress. The third rank is left to a stranger."""

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import orjson

from lmpool.io.orders import ControlOrder, IngressOrder, Notice, Order, Ready, WorkerOrder
from lmpool.io.supervision.child_process import PROGRAM, ChildProcess, Launch

RUN = "run-under-fuzz"
REPLICAS = 2
STRANGER = 2
"""A rank that belongs to the run and has no process."""
WAIT_S = 60.0
TOKENS = 48
PROMPT = list(range(2, 90))
TOKENS_MAX = 512
"""Of a context: a hundred choices of the longest answer that a request may ask for still end within half a minute."""


class Rig:
    """Started by `rig`; `lines` is everything that the processes have written to their logs."""

    def __init__(self, folder: Path, model: Path, api_keys: Path | None, log_level: str) -> None:
        """With a key file the first key in it is shown."""
        self.run_folder = folder
        self.children: dict[str, ChildProcess] = {}
        self.lines: list[str] = []
        self.url = ""
        self._model = str(model)
        self._log_level = log_level
        self._api_keys = None if api_keys is None else str(api_keys)
        self._key = "" if api_keys is None else api_keys.read_text().split()[0]

    async def start(self) -> None:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(2048)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        folder = str(self.run_folder)
        control = ControlOrder(RUN, folder, 1, "default", REPLICAS + 1, 60.0, None, None, 1 << 20, self._log_level)
        ready = [self._launch("control", control, ())]
        ready += [self._launch(f"worker {rank}", self._worker(rank), ()) for rank in range(REPLICAS)]
        await asyncio.wait_for(asyncio.gather(*ready), WAIT_S)
        ingress = IngressOrder(
            run=RUN,
            run_folder=folder,
            epoch=9,
            replicas=REPLICAS + 1,
            model_folder=self._model,
            served_names=("tiny",),
            listen_fd=listener.fileno(),
            api_key_file=self._api_keys,
            block_size=16,
            requests_max=1024,
            body_bytes_max=1 << 20,
            drain_s=5.0,
            log_level=self._log_level,
        )
        self._launch("ingress", ingress, (listener.fileno(),))
        listener.close()
        await self._all_live()

    def _worker(self, rank: int) -> WorkerOrder:
        return WorkerOrder(
            run=RUN,
            run_folder=str(self.run_folder),
            rank=rank,
            epoch=2 + rank,
            model_folder=self._model,
            device="cpu",
            dtype="auto",
            threads=1,
            block_size=16,
            kv_blocks=2048,
            kv_bytes=None,
            replicas=REPLICAS,
            model_tokens_max=TOKENS_MAX,
            step_tokens_max=256,
            sequences_max=32,
            waiting_requests_max=256,
            waiting_tokens_max=1 << 20,
            calibration_file=None,
            transfer_path="auto",
            sums_transfers=True,
            log_level=self._log_level,
        )

    def _launch(self, name: str, order: Order, descriptors: Sequence[int]) -> "asyncio.Future[None]":
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def hear(notice: Notice) -> None:
            if isinstance(notice, Ready) and not ready.done():
                ready.set_result(None)

        launch = Launch(name, order, dict(os.environ), tuple(descriptors), PROGRAM)
        self.children[name] = ChildProcess(launch, hear, lambda line: self.lines.append(f"{name}: {line}"))
        return ready

    async def _all_live(self) -> None:
        async with httpx.AsyncClient() as client, asyncio.timeout(WAIT_S):
            while True:
                try:
                    if (await self.complete(client)).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)

    async def complete(self, client: httpx.AsyncClient) -> httpx.Response:
        body = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        return await client.post(self.url + "/v1/completions", json=body, headers=headers, timeout=WAIT_S)

    async def reference(self) -> str:
        async with httpx.AsyncClient() as client:
            return str((await self.complete(client)).json()["choices"][0]["text"])

    async def stream(self, client: httpx.AsyncClient) -> str:
        """The whole text of one stream. Raises AssertionError for one that does not end as it should."""
        body = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
        parts: list[str] = []
        last = ""
        async with client.stream("POST", self.url + "/v1/completions", json=body, timeout=WAIT_S) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                last = line or last
                if line.startswith("data: {"):
                    event = orjson.loads(line[6:])
                    assert "error" not in event, event
                    parts.append(event["choices"][0]["text"])
        assert last == "data: [DONE]", last
        return "".join(parts)

    def assert_alive(self) -> None:
        for name, child in self.children.items():
            assert not child.ended.done(), f"{name} ended: {child.ended.result()}\n" + "\n".join(child.lines)

    def memory(self) -> dict[str, int]:
        """Resident bytes by process."""
        page = resource.getpagesize()
        return {
            name: int(Path(f"/proc/{child.pid}/statm").read_text().split()[1]) * page
            for name, child in self.children.items()
        }

    async def close(self) -> None:
        for child in self.children.values():
            child.kill()
        await asyncio.gather(*(child.ended for child in self.children.values()))


@asynccontextmanager
async def rig(folder: Path, model: Path, api_keys: Path | None, log_level: str = "info") -> AsyncIterator[Rig]:
    """Serving. `folder` is to be empty, with a short path."""
    made = Rig(folder, model, api_keys, log_level)
    try:
        await made.start()
        yield made
    finally:
        await made.close()
