"""What a server writes about its clients: no key, no prompt, no text of an answer, at the most talkative level."""

import asyncio
from pathlib import Path

import httpx

from tests.fuzz.rig import rig
from tests.fuzz.wire import short_folder
from tests.model_folder import write_tiny_folder

KEY = "sk-a-secret-of-ann"
STRANGE_KEY = "sk-a-secret-of-nobody"
PROMPT = "the world is a capital of hello, says nobody else"


async def _ask(client: httpx.AsyncClient) -> tuple[list[int], str]:
    """Good requests and bad ones; their statuses, and what was answered."""
    body = {"prompt": PROMPT, "max_tokens": 30, "temperature": 0}
    good = await client.post("/v1/completions", json=body)
    chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4}
    answers = [
        good,
        await client.post("/v1/chat/completions", json=chat),
        await client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {STRANGE_KEY}"}),
        await client.post("/v1/completions", json={**body, "temperature": PROMPT}),
        await client.post("/v1/completions", json={**body, "prompt": PROMPT * 3000}),
        await client.post("/v1/completions", content=PROMPT),
        await client.post("/v1/completions", json={**body, "logit_bias": {PROMPT: 1}}),
        await client.get(f"/v1/models/{PROMPT}"),
        await client.get("/pool/decisions"),
    ]
    return [answer.status_code for answer in answers], good.json()["choices"][0]["text"]


def test_keys_and_texts_are_in_no_log_and_no_metric(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY} ann limit=3\n")

    async def body() -> None:
        async with (
            rig(short_folder(tmp_path), write_tiny_folder(tmp_path / "model"), keys, "debug") as made,
            httpx.AsyncClient(base_url=made.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client,
        ):
            statuses, text = await _ask(client)
            assert statuses == [200, 200, 401, 400, 400, 400, 400, 404, 200]
            keys.write_text(f"{KEY} ann boss\n{STRANGE_KEY} ann\n")
            for _ in range(400):
                if any("key file cannot be used" in line for line in made.lines):
                    break
                await asyncio.sleep(0.05)
            written = "\n".join(made.lines)
            assert "request ended" in written
            assert "key file cannot be used" in written
            written += (await client.get("/metrics")).text + (await client.get("/pool/state")).text
            for secret in (KEY, STRANGE_KEY, "a-secret", PROMPT[:20], text):
                assert secret not in written

    asyncio.run(body())
