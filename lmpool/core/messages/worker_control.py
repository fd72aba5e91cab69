"""Worker and control: what a rank holds and how busy it is."""

import attrs

from lmpool.core.ids import Nanos, RequestId, Version
from lmpool.core.rates import Rates


@attrs.frozen
class Load:
    """A rank at the moment of a report."""

    blocks_free: int
    blocks_cached: int
    """Reclaimable: resident and used by no sequence."""
    waiting: int
    """Sequences that have not begun, or were preempted."""
    waiting_tokens: int
    """Their prefill tokens still to compute."""
    prefilling: int
    prefilling_tokens: int
    decoding: int
    decoding_context: int
    """Sum of the context tokens of the decoding sequences."""
    step_began_ns: Nanos | None
    """None when no step runs."""
    step_cost_ns: Nanos
    """Predicted duration of the running step."""


@attrs.frozen
class Totals:
    """What a rank has done since the beginning of its epoch."""

    tokens_computed: int
    """Prefill tokens, resumes included."""
    tokens_cached: int
    """Prompt tokens found cached when a sequence began for the first time."""
    outputs: int
    """Choices that came to their own end or length."""
    output_tokens: int
    """Their output tokens."""
    steps: int
    steps_failed: int
    preemptions: int


NOTHING_DONE = Totals(0, 0, 0, 0, 0, 0, 0)


@attrs.frozen
class WorkerJoined:
    """First message of a worker on every link: facts of this epoch."""

    namespace_base: bytes
    block_size: int
    blocks: int
    model_tokens_max: int
    """Longest context in force: the model's limit, the operator's, and what the pool can hold."""
    step_tokens_max: int
    sequences_max: int
    rates: Rates


@attrs.frozen
class Report:
    """Net changes since the report `version - 1` of this epoch. A gap makes control ask for a full report."""

    version: Version
    added: bytes
    """Packed hashes, ancestors first. No hash is in both lists."""
    removed: bytes
    accepted: tuple[RequestId, ...]
    """Submits received since the last report: control may stop counting their bookings apart."""
    ended: tuple[RequestId, ...]
    prefill_requests: tuple[RequestId, ...]
    """Live requests whose remaining prefill changed, and what is left, in tokens."""
    prefill_tokens: tuple[int, ...]
    load: Load
    rates: Rates
    totals: Totals


@attrs.frozen
class FullReport:
    """Everything, in `parts` messages of one version; later `Report`s continue from that version."""

    version: Version
    part: int
    parts: int
    hashes: bytes
    """Packed resident hashes, ancestors first over all parts."""
    requests: tuple[RequestId, ...]
    """All live requests (in the last part; empty before), and their remaining prefill tokens."""
    prefill_tokens: tuple[int, ...]
    load: Load
    rates: Rates
    totals: Totals


@attrs.frozen
class ReportWanted:
    """Control lacks a report: send a full one."""


@attrs.frozen
class DrainBegun:
    """No new requests here; what is live goes on."""
