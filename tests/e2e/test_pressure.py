"""More than a replica can hold, and steps that never end: what such a request costs others, and how it ends itself."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.e2e.server import moments, serving
from tests.model_folder import write_tiny_folder

BLOCK = 16
PROMPT_TOKENS = 2 * BLOCK
OUTPUT_TOKENS = 8 * BLOCK
REQUESTS = 6
BLOCKS = 24
"""All prompts fit, two answers do not."""

ENDLESS_CONTEXT_NS = 8e4
"""Of each pair of a prefill: the first half of a prompt of 1,000 tokens takes 10 s, one of twenty some milliseconds."""


def _body(number: int, salt: str) -> dict[str, object]:
    prompt = [2 + (number * 31 + place) % 200 for place in range(PROMPT_TOKENS)]
    return {"prompt": prompt, "max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True, "cache_salt": salt}


def test_sequences_that_give_way_for_others_give_the_answers_that_they_give_alone(
    integer_folder: Path, tmp_path: Path
) -> None:
    with serving(tmp_path, str(integer_folder), "--replicas", "1", "--kv-blocks", str(BLOCKS)) as server:

        def ask(number: int, salt: str) -> str:
            answer = httpx.post(server.url + "/v1/completions", json=_body(number, salt), timeout=60)
            assert answer.status_code == 200, answer.text
            text: str = answer.json()["choices"][0]["text"]
            return text

        def preemptions() -> int:
            count: int = httpx.get(server.url + "/pool/state").json()["replicas"][0]["preemptions"]
            return count

        alone = [ask(number, "alone") for number in range(REQUESTS)]
        assert preemptions() == 0
        with ThreadPoolExecutor(REQUESTS) as threads:
            together = list(threads.map(lambda number: ask(number, "together"), range(REQUESTS)))
        assert together == alone
        assert any(preemptions() for _ in moments(5))
        assert 'lmpool_preemptions_total{rank="0"} 0.0' not in httpx.get(server.url + "/metrics").text


def test_b60_a_request_whose_step_never_ends_takes_nobody_with_it(tmp_path: Path) -> None:
    """Each replica that tries it is replaced; after three in a row it is not tried again."""
    folder = write_tiny_folder(tmp_path / "endless", config={"prefill_context_ns": ENDLESS_CONTEXT_NS})
    with serving(tmp_path, str(folder), "--replicas", "2", "--stall-seconds", "5") as server:
        before = server.children()

        def ask(prompt: list[int]) -> httpx.Response:
            body = {"prompt": prompt, "max_tokens": 4, "temperature": 0}
            return httpx.post(server.url + "/v1/completions", json=body, timeout=100)

        with ThreadPoolExecutor(1) as threads:
            endless = threads.submit(ask, [7] * 1000)
            neighbours: list[httpx.Response] = []
            while not endless.done():
                neighbours.append(ask([5 + len(neighbours) % 90] * 20))
        assert {answer.status_code for answer in neighbours} == {200}
        assert endless.result().status_code == 500
        assert endless.result().json()["error"]["code"] == "generation_failed"
        assert "had work and completed no step for 5 s, and was killed" in server.log()
        server.wait_serving()
        after = server.children()
        assert (after["control"], after["ingress"]) == (before["control"], before["ingress"])
        assert after["worker-0"] != before["worker-0"]
        assert after["worker-1"] != before["worker-1"]
