"""Requests that schemathesis draws from the server's own openapi.json, while good streams run beside them.

Whatever comes in, the answer is one that `specs/api.md` has: no 5xx but 503, every error in the one shape, and soon.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import attrs
import httpx
import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase

from lmpool.io.http.errors import Code
from tests.fuzz.rig import PROMPT, Rig
from tests.fuzz.wire import FAULT_LINES, Figures, good_streams

ANSWER_S = 30.0
STATUSES = {code.word: code.status for code in Code}
GENERATION = ("/v1/completions", "/v1/chat/completions")
GOOD: Mapping[str, Mapping[str, Any]] = {
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 3},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3},
    "/tokenize": {"prompt": "hello world"},
    "/detokenize": {"tokens": PROMPT},
}
"""What lets a request through, whatever its other fields are."""


@attrs.define
class HttpFigures:
    answers: Counter[str] = attrs.field(factory=Counter)
    """By path, status and code."""
    unsendable: int = 0
    """Requests that no HTTP client can write."""
    streams: int = 0
    """Good ones."""


class Hunt:
    """From a thread of its own: hypothesis knows no event loop."""

    def __init__(self, rig: Rig, figures: HttpFigures, seed: int, requests: int) -> None:
        self._url = rig.url
        self._figures = figures
        self._seed = seed
        self._requests = requests

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=ANSWER_S) as client:
            schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
            for result in schema.get_all_operations():
                operation: Any = result.ok()  # type: ignore[union-attr]
                for mode in schemathesis.GenerationMode:
                    share = max(1, self._requests // 2)
                    self._try_operation(client, operation, operation.as_strategy(generation_mode=mode), share)

    def _try_operation(self, client: httpx.Client, operation: Any, cases: Any, requests: int) -> None:
        @hypothesis.seed(self._seed)
        @hypothesis.settings(
            max_examples=requests,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(cases, hypothesis.strategies.integers(0, 3))
        def try_case(case: Any, dice: int) -> None:
            words = case.as_transport_kwargs(base_url=self._url)
            if dice and operation.path in GOOD and isinstance(words.get("json"), dict):
                words["json"] = {**words["json"], **GOOD[operation.path]}
                if dice > 1:
                    words["json"].pop("model", None)
            self._ask(client, operation.path, words)

        with suppress(hypothesis.errors.Unsatisfiable):  # an endpoint that takes nothing can be given nothing wrong
            try_case()

    def _ask(self, client: httpx.Client, path: str, words: dict[str, Any]) -> None:
        words["headers"] = {name: value.encode("utf-8", "surrogateescape") for name, value in words["headers"].items()}
        if "data" in words:
            words["content"] = words.pop("data")
        try:
            request = client.build_request(**words)
        except (ValueError, TypeError, httpx.InvalidURL):
            self._figures.unsendable += 1
            return
        try:
            answer = client.send(request)
        except httpx.LocalProtocolError:
            self._figures.unsendable += 1
            return
        self._figures.answers[check_answer(path, answer)] += 1


def check_answer(path: str, answer: httpx.Response) -> str:
    """Path, status and code. Raises AssertionError for an answer that the specification does not have."""
    status, kind = answer.status_code, answer.headers["content-type"]
    if status >= 400:
        error = answer.json()["error"]
        assert list(error) == ["message", "type", "param", "code"], error
        assert STATUSES[error["code"]] == status, (status, error)
        assert status < 500 or status == 503, (answer.request.content[:2000], error)
        assert "x-request-id" in answer.headers or error["code"] == "invalid_http"
        return f"{path} {status} {error['code']}"
    assert status == 200, status
    assert "x-request-id" in answer.headers
    if kind.startswith("text/event-stream"):
        assert answer.text.endswith("data: [DONE]\n\n") or '"error"' in answer.text.split("\n\n")[-2]
    elif path in GENERATION:
        assert all(choice["finish_reason"] in ("stop", "length") for choice in answer.json()["choices"])
    return f"{path} 200"


async def hunt(rig: Rig, seed: int, requests: int) -> HttpFigures:
    """So many requests for each endpoint. Raises AssertionError for whatever must not be."""
    figures, wire = HttpFigures(), Figures()
    reference = await rig.reference()
    stop = asyncio.Event()
    streams = asyncio.create_task(good_streams(rig, reference, stop, wire))
    hunting = asyncio.create_task(asyncio.to_thread(Hunt(rig, figures, seed, requests).run))
    try:
        await asyncio.wait((streams, hunting), return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await hunting
    finally:
        await streams
    rig.assert_alive()
    faults = [line for line in rig.lines if FAULT_LINES.search(line)]
    assert not faults, "\n".join(faults[:20])
    figures.streams = wire.streams
    return figures
