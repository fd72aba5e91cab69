"""What a client makes of answers that end badly, told by a server that says just what it is given."""

import asyncio
import json
import time
from collections.abc import Sequence

import attrs
import pytest

from lmpool.bench.chaos.answer import Answer, ChoiceAnswer
from lmpool.bench.chaos.client import ChaosClient
from lmpool.bench.chaos.question import PLAIN, Form, Manner, Question
from lmpool.bench.chaos.server import Death
from lmpool.bench.chaos.tally import Ask, Fate

QUESTION = Question(1, Form.COMPLETION, {"prompt": "a", "max_tokens": 2, "temperature": 0.0}, None)
STREAM = attrs.evolve(PLAIN, is_stream=True, wants_usage=False)
EXPECTED = Answer((ChoiceAnswer("xy", "length", ()),), 1, 2)


class Scripted:
    """Answers every request with the same bytes, and then ends the connection."""

    def __init__(self, reply: bytes, pause_s: float) -> None:
        self.url = ""
        self.deaths: list[Death] = []
        self._reply = reply
        self._pause_s = pause_s

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        try:
            await asyncio.sleep(self._pause_s)
            writer.write(self._reply)
        finally:
            writer.close()


def ask(
    reply: bytes,
    manner: Manner,
    *,
    question: Question = QUESTION,
    dies: Sequence[str] = (),
    pause_s: float = 0.0,
    is_exact: bool = True,
) -> Ask:
    async def run() -> Ask:
        script = Scripted(reply, pause_s)
        server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
        async with server:
            script.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            script.deaths = [Death(time.monotonic() + 0.01, name, is_expected=True) for name in dies]
            client = ChaosClient(script, "m", is_exact=is_exact)
            try:
                return await client.ask(question, manner, EXPECTED)
            finally:
                await client.close()

    return asyncio.run(run())


def document(status: str, content: object, *headers: str) -> bytes:
    body = json.dumps(content).encode()
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def error(status: str, code: str, *headers: str) -> bytes:
    return document(status, {"error": {"message": "m", "type": "t", "param": None, "code": code}}, *headers)


def whole(text: str) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": "length", "logprobs": None}
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    facts = {"id": "i", "object": "text_completion", "created": 1, "model": "m"}
    return document("200 OK", {**facts, "choices": [choice], "usage": usage})


def stream(*events: str, is_cut: bool = False) -> bytes:
    body = "".join(f"data: {event}\n\n" for event in events)
    chunk = f"{len(body):x}\r\n{body}\r\n" + ("" if is_cut else "0\r\n\r\n")
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + chunk.encode()


def piece(text: str, finish: str | None = None) -> str:
    return json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": finish, "logprobs": None}]})


GOOD = (piece("x"), piece("y", "length"), "[DONE]")


def test_right_answers_are_complete() -> None:
    assert ask(whole("xy"), PLAIN).fate is Fate.COMPLETED
    assert ask(stream(*GOOD), STREAM).fate is Fate.COMPLETED


@pytest.mark.parametrize(
    "reply",
    [
        stream(piece("x"), piece("z", "length"), "[DONE]"),
        stream(piece("x"), piece("y", "stop"), "[DONE]"),
        stream(piece("y", "length"), "[DONE]"),
        stream(piece("x"), piece("x"), piece("y", "length"), "[DONE]"),
        stream(*GOOD[:2]),
        stream(piece("x"), "{"),
    ],
)
def test_streams_that_differ_from_the_undisturbed_one_are_wrong(reply: bytes) -> None:
    assert ask(reply, STREAM).fate is Fate.WRONG


def test_whole_answers_that_differ_are_wrong() -> None:
    assert ask(whole("xz"), PLAIN).fate is Fate.WRONG


def test_another_text_of_a_real_model_is_counted_and_another_form_is_wrong() -> None:
    drawn = attrs.evolve(QUESTION, fields={**QUESTION.fields, "temperature": 0.7})
    told = ask(whole("xz"), PLAIN, question=drawn, is_exact=False)
    assert (told.fate, told.differs) == (Fate.COMPLETED, True)
    assert not ask(whole("xy"), PLAIN, question=drawn, is_exact=False).differs
    assert ask(stream(piece("x"), "[DONE]"), STREAM, question=drawn, is_exact=False).fate is Fate.WRONG


def test_a_greedy_answer_of_a_real_model_is_held_against_its_tokens() -> None:
    assert ask(whole("xy"), PLAIN, is_exact=False).fate is Fate.COMPLETED
    assert ask(whole("xz"), PLAIN, is_exact=False).fate is Fate.WRONG


def test_a_cut_connection_is_lost_unless_the_ingress_died() -> None:
    assert ask(stream(GOOD[0], is_cut=True), STREAM).fate is Fate.LOST
    assert ask(stream(GOOD[0], is_cut=True), STREAM, dies=["worker-0"]).fate is Fate.LOST
    assert ask(stream(GOOD[0], is_cut=True), STREAM, dies=["ingress"]).fate is Fate.INGRESS_LOST
    assert ask(b"", PLAIN).fate is Fate.LOST
    assert ask(b"", PLAIN, dies=["ingress"]).fate is Fate.INGRESS_LOST


def test_what_came_before_the_cut_is_held_against_the_answer_as_well() -> None:
    assert ask(stream(piece("y"), is_cut=True), STREAM, dies=["ingress"]).fate is Fate.WRONG


def test_refusals_count_by_status_and_code() -> None:
    told = ask(error("429 Too Many Requests", "server_busy", "retry-after: 1"), STREAM)
    assert (told.fate, told.kind) == (Fate.REFUSED, "429 server_busy")
    assert ask(error("503 Service Unavailable", "no_replica", "retry-after: 1"), PLAIN).fate is Fate.REFUSED


def test_refusals_without_their_form_or_their_reason_are_wrong() -> None:
    assert ask(error("429 Too Many Requests", "server_busy"), PLAIN).fate is Fate.WRONG
    assert ask(document("503 Service Unavailable", {"error": "no"}, "retry-after: 1"), PLAIN).fate is Fate.WRONG
    assert ask(error("408 Request Timeout", "deadline_exceeded"), PLAIN).fate is Fate.WRONG
    assert ask(error("400 Bad Request", "invalid_value"), PLAIN).fate is Fate.WRONG


def test_a_deadline_is_a_refusal_to_who_has_set_one() -> None:
    late = attrs.evolve(PLAIN, deadline_ms=100)
    assert ask(error("408 Request Timeout", "deadline_exceeded"), late).fate is Fate.REFUSED
    event = json.dumps({"error": {"message": "m", "type": "t", "param": None, "code": "deadline_exceeded"}})
    assert ask(stream(GOOD[0], event), attrs.evolve(STREAM, deadline_ms=100)).fate is Fate.REFUSED
    assert ask(stream(GOOD[0], event), STREAM).fate is Fate.LOST


def test_failures_of_the_server_are_lost() -> None:
    assert ask(error("500 Internal Server Error", "generation_failed"), PLAIN).fate is Fate.LOST


def test_nonsense_has_to_be_refused_with_its_code() -> None:
    nonsense = attrs.evolve(QUESTION, refusal="invalid_value")
    assert ask(error("400 Bad Request", "invalid_value"), PLAIN, question=nonsense).fate is Fate.REFUSED
    assert ask(error("400 Bad Request", "invalid_type"), PLAIN, question=nonsense).fate is Fate.WRONG


def test_a_client_that_leaves_before_the_answer_has_cancelled() -> None:
    assert ask(whole("xy"), attrs.evolve(PLAIN, leaves_after_s=0.05), pause_s=5).fate is Fate.CANCELLED
