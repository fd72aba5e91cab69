"""What the integer model has to answer, computed from the prompt's tokens alone: no server, no cache."""

from collections.abc import Mapping, Sequence
from typing import Any

from lmpool.bench.byte_model import BYTES, ENDS, VOCABULARY
from lmpool.bench.chaos.answer import Answer
from lmpool.bench.chaos.question import Question
from lmpool.core.sampling import SamplingSettings, StopSettings
from lmpool.sim.integer_model import reference_choice


def reference_differences(question: Question, prompt: Sequence[int], told: Answer) -> list[str]:
    """Of texts, finish reasons and counts; empty if `told` is the model's answer."""
    sampling, stop = _sampling(question.fields), _stop(question.fields)
    echo = bytes(prompt).decode(errors="replace") if question.fields.get("echo") else ""
    found, tokens = [], 0
    for index, choice in enumerate(told.choices):
        output = [token for token, _ in reference_choice(VOCABULARY, prompt, sampling, stop, index)]
        text, finish, count = _ended(output, _stops(question.fields), stop.output_tokens_max)
        tokens += count
        if (choice.text, choice.finish) != (echo + text, finish):
            found.append(f"choice {index}: {choice} instead of {echo + text!r}, {finish}")
    if told.completion_tokens != tokens:
        found.append(f"{told.completion_tokens} completion tokens instead of {tokens}")
    if told.prompt_tokens != len(prompt):
        found.append(f"{told.prompt_tokens} prompt tokens instead of {len(prompt)}")
    return found


def _ended(output: Sequence[int], stops: Sequence[str], tokens_max: int) -> tuple[str, str, int]:
    """Text, finish reason and tokens of one choice. A stop string is one character of one byte."""
    text = b""
    for count, token in enumerate(output, 1):
        if token in ENDS:
            return text.decode(errors="replace"), "stop", count
        piece = bytes([token]) if token < BYTES else b""
        if piece.isascii() and piece.decode() in stops:
            return text.decode(errors="replace"), "stop", count
        text += piece
    assert len(output) == tokens_max
    return text.decode(errors="replace"), "length", len(output)


def _stops(fields: Mapping[str, Any]) -> Sequence[str]:
    stops: Sequence[str] = fields.get("stop", ())
    return stops


def _sampling(fields: Mapping[str, Any]) -> SamplingSettings:
    return SamplingSettings(
        temperature=fields["temperature"],
        top_p=fields.get("top_p", 1.0),
        top_k=0,
        min_p=0.0,
        presence_penalty=fields.get("presence_penalty", 0.0),
        frequency_penalty=fields.get("frequency_penalty", 0.0),
        repetition_penalty=1.0,
        logit_bias=(),
        logprobs=None,
        seed=fields.get("seed", 0),
    )


def _stop(fields: Mapping[str, Any]) -> StopSettings:
    return StopSettings(output_tokens_max=fields["max_tokens"], output_tokens_min=0, ends=ENDS, hidden_ends=ENDS)
