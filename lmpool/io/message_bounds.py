"""What the types of a message cannot say: sizes, counts and columns that belong together. Checked on arrival."""

from collections.abc import Iterable, Sequence, Sized
from itertools import chain
from math import isfinite

from attrs import astuple

from lmpool.core.ids import SECOND
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
    TRANSFER_BLOCKS_MAX,
    TRANSFERS_TOLD,
)
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_control import (
    BookingsOffered,
    Busy,
    DecisionsAsked,
    DecisionsReported,
    RouteAsked,
    RouteDecided,
    StateReported,
)
from lmpool.core.messages.ingress_worker import (
    Accepted,
    Finish,
    FinishChoice,
    PromptScored,
    Refused,
    Submit,
    TokensProduced,
)
from lmpool.core.messages.transfer import (
    Awaited,
    BeginCopy,
    BeginSend,
    Copied,
    PrepareSource,
    PrepareTarget,
    Publish,
    Published,
    SourcePrepared,
    TargetPrepared,
    TransferAsked,
    TransferEnded,
)
from lmpool.core.messages.worker_control import FullReport, Load, Report, Totals, WorkerJoined
from lmpool.core.plan import NOT_FINITE, TokenLogprobs
from lmpool.core.prefix import HASH_BYTES, TOKEN_BYTES
from lmpool.core.rates import Rates
from lmpool.core.sampling import SamplingSettings, StopSettings

ASKED_REQUESTS_MAX = 1 << 17
"""Open ones and those with a history: twice what an ingress may have open."""
ENDS_MAX = 2 * STOP_TOKENS_MAX
"""The client's stop tokens and the model's own; no model has more than a dozen of its own."""
TOKEN_MAX = (1 << 32) - 1
"""What four bytes hold."""
TOKENS_MAX = 2 * PROMPT_TOKENS_MAX
"""Prompt and output together."""
BLOCKS_MAX = 1 << 24
"""Of one rank, as in the settings."""
CHAIN_BLOCKS_MAX = PROMPT_TOKENS_MAX // BLOCK_SIZE_MIN
COUNT_MAX = (1 << 63) - 1
TRANSFER_NS_MAX = 3_600 * SECOND
"""An hour: of a copy, and of a lease."""
LIVE_REQUESTS_MAX = 1 << 17
"""At one rank: more than its longest queue and its largest batch together."""
RATE_MAX = 1e18
"""Nanoseconds: thirty years for a step."""


TOKENLESS = (Finish.NOT_FINITE, Finish.STEP_FAILED)
"""Ends whose row has no token."""


def _within(name: str, number: int, least: int, most: int) -> None:
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}, not {least} to {most}")


def _not_negative(name: str, numbers: Sequence[int]) -> None:
    if numbers and min(numbers) < 0:
        raise ValueError(f"{name} has {min(numbers)}, which is no count")


def _finite(name: str, numbers: Iterable[float]) -> None:
    for number in numbers:
        if not isfinite(number) or abs(number) > RATE_MAX:
            raise ValueError(f"{name} has {number}")


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
    penalties = sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty
    shares = sampling.top_p, sampling.min_p, sampling.temperature
    _finite("sampling", (*penalties, *shares, *(bias for _, bias in sampling.logit_bias)))
    if min(shares) < 0 or sampling.repetition_penalty <= 0:
        raise ValueError("sampling has a share, temperature or repetition penalty below its least")
    _within("top_k", sampling.top_k, 0, TOKEN_MAX)
    _within("logit biases", len(sampling.logit_bias), 0, LOGIT_BIAS_MAX)
    for token in (*(token for token, _ in sampling.logit_bias), *stop.ends, *stop.hidden_ends):
        _within("token", token, 0, TOKEN_MAX)
    _within("most output tokens", stop.output_tokens_max, 0, TOKENS_MAX)
    _within("least output tokens", stop.output_tokens_min, 0, TOKENS_MAX)
    _within("log-probabilities", sampling.logprobs or 0, 0, LOGPROBS_MAX)
    _within("end tokens", len(stop.ends), 0, ENDS_MAX)
    _within("hidden end tokens", len(stop.hidden_ends), 0, ENDS_MAX)


def _awaited(awaited: Awaited | None) -> None:
    if awaited is not None:
        _within("awaited blocks", awaited.blocks, 0, CHAIN_BLOCKS_MAX)
        _within("moment until which it waits", awaited.until_ns, 0, COUNT_MAX)


def _submit(submit: Submit) -> None:
    _digest("namespace", submit.namespace)
    _packed("prompt", submit.prompt, TOKEN_BYTES, 1, PROMPT_TOKENS_MAX)
    _chain(submit.chain, len(submit.prompt) // TOKEN_BYTES)
    _within("choices", len(submit.choices), 1, CHOICES_MAX)
    _columns("choices", submit.choices, submit.outputs)
    _within("first choice", submit.choices[0], 0, CHOICES_MAX - 1)
    _within("last choice", submit.choices[-1], 0, CHOICES_MAX - 1)
    if list(submit.choices) != sorted(set(submit.choices)):
        raise ValueError("choices do not rise")
    for output in submit.outputs:
        _packed("output", output, TOKEN_BYTES, 0, PROMPT_TOKENS_MAX)
    _within("prompt log-probabilities", submit.prompt_logprobs or 0, 0, LOGPROBS_MAX)
    _within("priority", submit.priority, PRIORITY_MIN, PRIORITY_MAX)
    _sampling(submit.sampling, submit.stop)
    _awaited(submit.awaits)


def _route_asked(asked: RouteAsked) -> None:
    _digest("namespace", asked.namespace)
    _within("prompt tokens", asked.prompt_tokens, 1, TOKENS_MAX)
    _within("most output tokens", asked.output_tokens_max, 0, TOKENS_MAX)
    _within("draw", asked.draw, 0, COUNT_MAX)
    _chain(asked.chain, asked.prompt_tokens)
    _within("choices", asked.choices, 1, CHOICES_MAX)
    _within("bytes of session", len(asked.session.encode()), 0, LABEL_BYTES_MAX)
    _within("priority", asked.priority, PRIORITY_MIN, PRIORITY_MAX)
    _within("excluded ranks", len(asked.excluded), 0, RANKS_MAX)


def _load(load: Load, rates: Rates, totals: Totals) -> None:
    _not_negative("load", astuple(load, recurse=False)[:-2])
    _within("cost of a step", load.step_cost_ns, 0, COUNT_MAX)
    _not_negative("totals", astuple(totals, recurse=False))
    _rates(rates)


def _rates(rates: Rates) -> None:
    numbers = astuple(rates, recurse=False)
    _finite("rates", numbers)
    if min(numbers) < 0:
        raise ValueError(f"rates have {min(numbers)}")


def _full_report(report: FullReport) -> None:
    _load(report.load, report.rates, report.totals)
    _within("live requests", len(report.requests), 0, LIVE_REQUESTS_MAX)
    _not_negative("remaining prefill", report.prefill_tokens)
    _packed("hashes", report.hashes, HASH_BYTES, 0, REPORT_HASHES_MAX)
    _within("part", report.part, 0, report.parts - 1)
    _columns("remaining prefill", report.requests, report.prefill_tokens)


def _report(report: Report) -> None:
    if (len(report.added) | len(report.removed)) % HASH_BYTES:
        raise ValueError(f"hashes are not multiples of {HASH_BYTES} bytes")
    _columns("remaining prefill", report.prefill_requests, report.prefill_tokens)
    _not_negative("remaining prefill", report.prefill_tokens)
    _within("accepted requests", len(report.accepted), 0, LIVE_REQUESTS_MAX)
    _load(report.load, report.rates, report.totals)


def _worker_joined(joined: WorkerJoined) -> None:
    _digest("namespace base", joined.namespace_base)
    _within("block size", joined.block_size, BLOCK_SIZE_MIN, BLOCK_SIZE_MAX)
    _within("blocks", joined.blocks, 1, BLOCKS_MAX)
    _within("longest context", joined.model_tokens_max, 1, COUNT_MAX)
    _within("tokens of a step", joined.step_tokens_max, 1, COUNT_MAX)
    _within("sequences", joined.sequences_max, 1, COUNT_MAX)
    _rates(joined.rates)
    if joined.block_size & (joined.block_size - 1):
        raise ValueError(f"block size is {joined.block_size}, not a power of two")


def _tokens_produced(produced: TokensProduced) -> None:
    rows = len(produced.tokens)
    if not rows == len(produced.requests) == len(produced.attempts) == len(produced.choices):
        raise ValueError("columns of requests differ in length")
    if not rows == len(produced.output_indexes) == len(produced.finishes):
        raise ValueError("columns of tokens differ in length")
    _not_negative("choices", produced.choices)
    _not_negative("output indexes", produced.output_indexes)
    if rows:
        _within("greatest token", max(produced.tokens), NOT_FINITE, TOKEN_MAX)
    if rows and min(produced.tokens) < 0:
        for token, finish in zip(produced.tokens, produced.finishes, strict=True):
            if token < 0 and finish not in TOKENLESS:
                raise ValueError(f"{token} is no token")
    if produced.logprobs:
        _columns("log-probabilities", produced.logprobs, produced.tokens)
        _logprobs(produced.logprobs)


def _decisions(reported: DecisionsReported) -> None:
    _within("decisions", len(reported.decisions), 0, DECISIONS_KEPT)
    for decision in reported.decisions:
        _within("candidates", len(decision.candidates), 0, RANKS_MAX)
    for candidate in chain.from_iterable(decision.candidates for decision in reported.decisions):
        _within("rank", candidate.rank, 0, RANKS_MAX - 1)


def _answers(answer: RouteDecided | Busy | Accepted | Refused | FinishChoice | PromptScored) -> None:
    match answer:
        case RouteDecided(rank=rank, awaits=awaits):
            _within("rank", rank, 0, RANKS_MAX - 1)
            _awaited(awaits)
        case Busy(retry_after_ns=retry_after) | Refused(retry_after_ns=retry_after):
            _within("retry after", retry_after, 0, COUNT_MAX)
        case Accepted(cached_tokens=cached, waited_ns=waited):
            _within("cached tokens", cached, 0, TOKENS_MAX)
            _within("wait", waited, 0, COUNT_MAX)
        case FinishChoice(choice=choice, output_index=index):
            _within("choice", choice, 0, CHOICES_MAX - 1)
            _within("output index", index, 0, TOKENS_MAX)
        case PromptScored(start=start, entries=entries):
            _within("start", start, 0, TOKENS_MAX)
            _logprobs(entries)


def _blocks(blocks: Sequence[int], generations: Sequence[int]) -> None:
    _columns("blocks", blocks, generations)
    _within("blocks", len(blocks), 1, TRANSFER_BLOCKS_MAX)
    _within("least block", min(blocks), 0, BLOCKS_MAX - 1)
    _within("greatest block", max(blocks), 0, BLOCKS_MAX - 1)
    _not_negative("generations", generations)


def _placed(message: PrepareSource | PrepareTarget | TransferAsked) -> None:
    _packed("chain", message.chain, HASH_BYTES, 1, CHAIN_BLOCKS_MAX)
    _within("first", message.first, 0, len(message.chain) // HASH_BYTES - 1)


def _transfer(message: Message) -> None:
    match message:
        case PrepareSource(target=rank) | PrepareTarget(source=rank):
            _within("rank", rank, 0, RANKS_MAX - 1)
            _within("deadline", message.deadline_ns, 0, COUNT_MAX)
            _placed(message)
        case TransferAsked(source=source, target=target, copy_ns=copy_ns, lease_ns=lease_ns):
            _within("source", source, 0, RANKS_MAX - 1)
            _within("target", target, 0, RANKS_MAX - 1)
            _within("copy time", copy_ns, 1, TRANSFER_NS_MAX)
            _within("lease", lease_ns, 0, TRANSFER_NS_MAX)
            _placed(message)
        case BeginCopy(blocks=blocks, generations=generations) | SourcePrepared(blocks=blocks, generations=generations):
            _blocks(blocks, generations)
        case BeginSend(first=first):
            _within("first", first, 0, CHAIN_BLOCKS_MAX - 1)
        case TargetPrepared(first=first, blocks=count):
            _within("first", first, 0, CHAIN_BLOCKS_MAX - 1)
            _within("blocks", count, 1, TRANSFER_BLOCKS_MAX)
        case Copied(size_bytes=size, copy_ns=duration):
            _within("size", size, 0, COUNT_MAX)
            _within("duration", duration, 0, COUNT_MAX)
        case Publish(lease_until_ns=until):
            _within("lease", until, 0, COUNT_MAX)
        case Published(version=version):
            _within("version", version, 1, COUNT_MAX)
        case TransferEnded(blocks_freed=freed):
            _within("freed blocks", freed, 0, BLOCKS_MAX)
        case _:
            pass


def _offered(offered: BookingsOffered) -> None:
    _columns("bookings", offered.requests, offered.attempts, offered.ranks, offered.epochs)
    _columns("bookings", offered.requests, offered.prompt_tokens)
    _within("bookings", len(offered.requests), 0, LIVE_REQUESTS_MAX)
    _not_negative("ranks", offered.ranks)
    _not_negative("prompt tokens", offered.prompt_tokens)


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
        case RouteDecided() | Busy() | Accepted() | Refused() | FinishChoice() | PromptScored():
            _answers(message)
        case FullReport():
            _full_report(message)
        case WorkerJoined():
            _worker_joined(message)
        case BookingsOffered():
            _offered(message)
        case StateReported():
            _within("ranks", len(message.ranks), 0, RANKS_MAX)
            _within("transfers", len(message.transfers.under_way), 0, RANKS_MAX)
            _within("transfers", len(message.transfers.over), 0, TRANSFERS_TOLD)
        case DecisionsReported():
            _decisions(message)
        case DecisionsAsked():
            _within("limit", message.limit, 0, DECISIONS_KEPT)
            _within("requests", len(message.requests or ()), 0, ASKED_REQUESTS_MAX)
        case _:
            _transfer(message)
