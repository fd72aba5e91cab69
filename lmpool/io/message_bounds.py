"""What the types of a message cannot say: sizes, counts and columns that belong together. Checked on arrival."""

from collections.abc import Iterable, Sized
from itertools import chain

from lmpool.core.limits import (
    BLOCK_SIZE_MAX,
    BLOCK_SIZE_MIN,
    CHOICES_MAX,
    DECISIONS_KEPT,
    LABEL_BYTES_MAX,
    LOGIT_BIAS_MAX,
    LOGPROBS_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    PROMPT_TOKENS_MAX,
    RANKS_MAX,
    REPORT_HASHES_MAX,
    STOP_TOKENS_MAX,
)
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_control import (
    BookingsOffered,
    DecisionsAsked,
    DecisionsReported,
    RouteAsked,
    StateReported,
)
from lmpool.core.messages.ingress_worker import PromptScored, Submit, TokensProduced
from lmpool.core.messages.worker_control import FullReport, Report, WorkerJoined
from lmpool.core.plan import TokenLogprobs
from lmpool.core.prefix import HASH_BYTES, TOKEN_BYTES
from lmpool.core.sampling import SamplingSettings, StopSettings

ASKED_REQUESTS_MAX = 1 << 17
"""Open ones and those with a history: twice what an ingress may have open."""
ENDS_MAX = 2 * STOP_TOKENS_MAX
"""The client's stop tokens and the model's own; no model has more than a dozen of its own."""


def _within(name: str, number: int, least: int, most: int) -> None:
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}, not {least} to {most}")


def _columns(name: str, *columns: Sized) -> None:
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"columns of {name} differ in length")


def _packed(name: str, packed: bytes, width: int, least: int, most: int) -> None:
    if len(packed) % width:
        raise ValueError(f"{name} has {len(packed)} bytes, not a multiple of {width}")
    _within(name, len(packed) // width, least, most)


def _digest(name: str, digest: bytes) -> None:
    _within(f"bytes of {name}", len(digest), HASH_BYTES, HASH_BYTES)


def _chain(hashes: bytes, tokens: int) -> None:
    _packed("chain", hashes, HASH_BYTES, 0, tokens // BLOCK_SIZE_MIN)


def _logprobs(entries: Iterable[TokenLogprobs | None]) -> None:
    for entry in entries:
        if entry is not None:
            _columns("top tokens", entry.top_tokens, entry.top_logprobs)
            _within("top tokens", len(entry.top_tokens), 0, LOGPROBS_MAX)


def _sampling(sampling: SamplingSettings, stop: StopSettings) -> None:
    _within("logit biases", len(sampling.logit_bias), 0, LOGIT_BIAS_MAX)
    _within("log-probabilities", sampling.logprobs or 0, 0, LOGPROBS_MAX)
    _within("end tokens", len(stop.ends), 0, ENDS_MAX)
    _within("hidden end tokens", len(stop.hidden_ends), 0, ENDS_MAX)


def _submit(submit: Submit) -> None:
    _digest("namespace", submit.namespace)
    _packed("prompt", submit.prompt, TOKEN_BYTES, 1, PROMPT_TOKENS_MAX)
    _chain(submit.chain, len(submit.prompt) // TOKEN_BYTES)
    _within("choices", len(submit.choices), 1, CHOICES_MAX)
    _columns("choices", submit.choices, submit.outputs)
    for output in submit.outputs:
        _packed("output", output, TOKEN_BYTES, 0, PROMPT_TOKENS_MAX)
    _within("prompt log-probabilities", submit.prompt_logprobs or 0, 0, LOGPROBS_MAX)
    _within("priority", submit.priority, PRIORITY_MIN, PRIORITY_MAX)
    _sampling(submit.sampling, submit.stop)


def _route_asked(asked: RouteAsked) -> None:
    _digest("namespace", asked.namespace)
    _within("prompt tokens", asked.prompt_tokens, 1, 2 * PROMPT_TOKENS_MAX)
    _chain(asked.chain, asked.prompt_tokens)
    _within("choices", asked.choices, 1, CHOICES_MAX)
    _within("bytes of session", len(asked.session.encode()), 0, LABEL_BYTES_MAX)
    _within("priority", asked.priority, PRIORITY_MIN, PRIORITY_MAX)
    _within("excluded ranks", len(asked.excluded), 0, RANKS_MAX)


def _full_report(report: FullReport) -> None:
    _packed("hashes", report.hashes, HASH_BYTES, 0, REPORT_HASHES_MAX)
    _within("part", report.part, 0, report.parts - 1)
    _columns("remaining prefill", report.requests, report.prefill_tokens)


def _report(report: Report) -> None:
    if (len(report.added) | len(report.removed)) % HASH_BYTES:
        raise ValueError(f"hashes are not multiples of {HASH_BYTES} bytes")
    _columns("remaining prefill", report.prefill_requests, report.prefill_tokens)


def _worker_joined(joined: WorkerJoined) -> None:
    _digest("namespace base", joined.namespace_base)
    _within("block size", joined.block_size, BLOCK_SIZE_MIN, BLOCK_SIZE_MAX)
    if joined.block_size & (joined.block_size - 1):
        raise ValueError(f"block size is {joined.block_size}, not a power of two")


def _tokens_produced(produced: TokensProduced) -> None:
    rows = len(produced.tokens)
    if not rows == len(produced.requests) == len(produced.attempts) == len(produced.choices):
        raise ValueError("columns of requests differ in length")
    if not rows == len(produced.output_indexes) == len(produced.finishes):
        raise ValueError("columns of tokens differ in length")
    if produced.logprobs:
        _columns("log-probabilities", produced.logprobs, produced.tokens)
        _logprobs(produced.logprobs)


def _decisions(reported: DecisionsReported) -> None:
    _within("decisions", len(reported.decisions), 0, DECISIONS_KEPT)
    for decision in reported.decisions:
        _within("candidates", len(decision.candidates), 0, RANKS_MAX)
    for candidate in chain.from_iterable(decision.candidates for decision in reported.decisions):
        _within("rank", candidate.rank, 0, RANKS_MAX - 1)


def check_bounds(message: Message) -> None:
    """Raises ValueError that names the field. Messages without bounds of their own pass."""
    match message:
        case TokensProduced():
            _tokens_produced(message)
        case Report():
            _report(message)
        case Submit():
            _submit(message)
        case RouteAsked():
            _route_asked(message)
        case PromptScored():
            _logprobs(message.entries)
        case FullReport():
            _full_report(message)
        case WorkerJoined():
            _worker_joined(message)
        case BookingsOffered():
            _columns("bookings", message.requests, message.attempts, message.ranks, message.epochs)
            _columns("bookings", message.requests, message.prompt_tokens)
        case StateReported():
            _within("ranks", len(message.ranks), 0, RANKS_MAX)
        case DecisionsReported():
            _decisions(message)
        case DecisionsAsked():
            _within("limit", message.limit, 0, DECISIONS_KEPT)
            _within("requests", len(message.requests or ()), 0, ASKED_REQUESTS_MAX)
        case _:
            pass
