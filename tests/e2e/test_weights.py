"""The bundled model, served as it is for everyone: sensible answers, and a hit that equals a miss."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest

from lmpool.io.supervision.machine import usual_cache_folder
from tests.e2e.server import Server, serving

pytestmark = [pytest.mark.weights, pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]

LOGPROB_TOLERANCE = 2e-3
"""In float32, where logits agree within 1e-3: of a difference of two of them."""

STORY = (
    "Once upon a time there was a lighthouse keeper who counted ships. Every evening he wrote the number into a thick "
    "book, and every morning he read it aloud to the gulls, who did not care. "
) * 24


@attrs.frozen
class Answer:
    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    gaps: tuple[float, ...]
    """Between the two best, at each token."""
    cached_tokens: int


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Pool and steps small enough for chunks, preemption and reclaiming."""
    arguments = (
        "--replicas",
        "2",
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--kv-blocks",
        "96",
        "--step-tokens",
        "128",
    )
    cache = ("--cache-folder", str(usual_cache_folder({})))
    with serving(tmp_path_factory.mktemp("weights"), *arguments, *cache) as server:
        yield server


def ask(server: Server, prompt: Sequence[int], salt: str, max_tokens: int) -> Answer:
    body = {
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "logprobs": 2,
        "cache_salt": salt,
        "ignore_eos": True,
    }
    answer = httpx.post(server.url + "/v1/completions", json=body, timeout=600)
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    scored = content["choices"][0]["logprobs"]
    best = [sorted(top.values(), reverse=True) for top in scored["top_logprobs"]]
    return Answer(
        tokens=tuple(scored["tokens"]),
        logprobs=tuple(scored["token_logprobs"]),
        gaps=tuple(values[0] - values[1] for values in best),
        cached_tokens=content["usage"]["prompt_tokens_details"]["cached_tokens"],
    )


def assert_equal(hit: Answer, miss: Answer) -> None:
    """Log-probabilities agree, and tokens wherever the best is best by more than the tolerance."""
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(hit.tokens, miss.tokens, strict=True))))
    for index in range(same):
        assert abs(hit.logprobs[index] - miss.logprobs[index]) < LOGPROB_TOLERANCE
    assert same == len(miss.tokens) or miss.gaps[same] < LOGPROB_TOLERANCE


@pytest.fixture(scope="module")
def story(server: Server) -> list[int]:
    tokens: list[int] = httpx.post(server.url + "/tokenize", json={"prompt": STORY}).json()["tokens"]
    assert len(tokens) > 600
    return tokens


def test_a_question_is_answered_sensibly(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
    answer = httpx.post(server.url + "/v1/chat/completions", json={**body, "max_tokens": 32}, timeout=600).json()
    assert "Paris" in answer["choices"][0]["message"]["content"], answer


@pytest.mark.parametrize("length", [15, 16, 17, 32, 33, 127, 128, 129, 300])
def test_b26_a_prompt_asked_again_gets_the_same_answer(server: Server, story: list[int], length: int) -> None:
    miss = ask(server, story[:length], f"again {length}", 12)
    hit = ask(server, story[:length], f"again {length}", 12)
    assert miss.cached_tokens == 0
    assert hit.cached_tokens >= (length - 1) // 16 * 16
    assert_equal(hit, miss)


def test_a_prompt_that_continues_a_cached_one_equals_a_cold_one(server: Server, story: list[int]) -> None:
    miss = ask(server, story[:400], "cold", 12)
    ask(server, story[:250], "warm", 1)
    hit = ask(server, story[:400], "warm", 12)
    assert hit.cached_tokens == 240
    assert_equal(hit, miss)


def test_siblings_in_flight_and_mixed_batches_equal_single_requests(server: Server, story: list[int]) -> None:
    prompts = [story[: 200 + 7 * number] for number in range(12)]
    alone = [ask(server, prompt, f"alone {number}", 12) for number, prompt in enumerate(prompts)]
    with ThreadPoolExecutor(len(prompts)) as threads:
        together = list(threads.map(lambda prompt: ask(server, prompt, "together", 12), prompts))
    for one, other in zip(together, alone, strict=True):
        assert_equal(one, other)


def test_pools_too_small_for_all_at_once_change_nothing(server: Server, story: list[int]) -> None:
    """Six sequences of up to 33 blocks on two pools of 96: cached blocks are reclaimed, some wait or are preempted."""
    prompts = [story[number : number + 480] for number in range(6)]
    alone = [ask(server, prompt, f"single {number}", 48) for number, prompt in enumerate(prompts)]
    with ThreadPoolExecutor(len(prompts)) as threads:
        crowded = list(threads.map(lambda pair: ask(server, pair[1], f"crowd {pair[0]}", 48), enumerate(prompts)))
    for one, other in zip(crowded, alone, strict=True):
        assert_equal(one, other)


def test_the_folder_of_weights_is_used_from_the_cache(server: Server) -> None:
    (line,) = [line for line in server.log().splitlines() if line.startswith("model ")]
    assert Path(line.removeprefix("model ")).is_relative_to(usual_cache_folder({}))
