"""Records for tests of the wire: one fixed example of each kind, and strategies that draw any."""

from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs
from hypothesis import strategies as st

from lmpool.core.ids import BlockId, Epoch, Generation, Nanos, Rank, RequestId, Role, TransferId, Version
from lmpool.core.limits import CHOICES_MAX, DECISIONS_KEPT, LOGPROBS_MAX, PRIORITY_MAX, PRIORITY_MIN
from lmpool.core.messages import ingress_control as ic
from lmpool.core.messages import ingress_worker as iw
from lmpool.core.messages import transfer as tr
from lmpool.core.messages import worker_control as wc
from lmpool.core.plan import TokenLogprobs
from lmpool.core.rates import Rates
from lmpool.core.sampling import SamplingSettings, StopSettings
from lmpool.io.wire import Framed, Hello, HelloRefused

KINDS: tuple[type, ...] = get_args(Framed)

REQUEST = RequestId(Epoch(2), 7)
TRANSFER = TransferId(Epoch(4), 9)
RATES = Rates(step=2e6, prefill=3e4, prefill_context=1.5, decode=9e4, decode_context=40.0)
LOAD = wc.Load(
    blocks_free=90,
    blocks_cached=30,
    waiting=1,
    waiting_tokens=40,
    prefilling=0,
    prefilling_tokens=0,
    decoding=2,
    decoding_context=75,
    step_began_ns=Nanos(5_000_000_000),
    step_cost_ns=Nanos(12_000_000),
)
TOTALS = wc.Totals(
    tokens_computed=900,
    tokens_cached=300,
    outputs=12,
    output_tokens=700,
    steps=65,
    steps_failed=1,
    preemptions=2,
)
LOGPROBS = TokenLogprobs(token=11, logprob=-0.25, top_tokens=(11, 12), top_logprobs=(-0.25, -1.5))
SAMPLING = SamplingSettings(
    temperature=0.7,
    top_p=0.9,
    top_k=0,
    min_p=0.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
    repetition_penalty=1.0,
    logit_bias=((5, -1.5),),
    logprobs=2,
    seed=-3,
)
STOP = StopSettings(output_tokens_max=64, output_tokens_min=0, ends=(0, 2), hidden_ends=(0,))
CANDIDATE = ic.Candidate(
    rank=Rank(1),
    eligible=True,
    reason="",
    ready_blocks=1,
    arriving_blocks=0,
    uncached_tokens=4,
    terms=(1.5e6, 0.0),
    cost=1.5e6,
)
DECISION = ic.Decision(
    number=12,
    request=REQUEST,
    attempt=0,
    at_ns=Nanos(6_000_000_000),
    policy="marginal-time",
    rank=Rank(1),
    reason="least cost",
    prompt_tokens=20,
    chain_blocks=1,
    term_names=("wait", "prefill"),
    candidates=(CANDIDATE, attrs.evolve(CANDIDATE, rank=Rank(2), eligible=False, reason="down", cost=float("inf"))),
    fetch="pull of 3 blocks",
)
TRANSFERS = tr.TransfersShown(
    under_way=(
        tr.TransferShown(TRANSFER, Rank(0), Rank(1), tr.TransferMode.MOVE, 3, "copying", "", "", None, Nanos(7)),
    ),
    over=(),
    outcomes=(("published", 1), ("late", 0)),
    refusals=(("no blocks", 2),),
    blocks=3,
    size_bytes=4096,
    copy_ns=1_500_000,
    placement=tr.PlacementShown(
        admitted=(("pull", 2),),
        refused=(("copy", "no room", 1),),
        blocks=(("pull", 3),),
        observed=1,
        observed_ns=2e7,
        error_ns=5e6,
        over_median=1,
        over_p95=0,
        placed=(
            tr.PlacedShown(
                TRANSFER, "pull", Rank(0), Rank(1), 3, Nanos(5), 1.5e7, 4e7, 9e7, 5e6, "published", Nanos(7)
            ),
        ),
        refusals=(tr.RefusedShown(Nanos(6), "copy of 3 blocks", 1),),
    ),
)
RANK_STATE = ic.RankState(
    rank=Rank(0),
    epoch=Epoch(3),
    membership="live",
    blocks=128,
    blocks_free=90,
    blocks_cached=30,
    resident_hashes=38,
    waiting=1,
    prefilling=0,
    decoding=2,
    booked=1,
    prefill_tokens=40,
    tokens_computed=900,
    tokens_cached=300,
    steps_failed=1,
    preemptions=2,
    routed=17,
)

EXAMPLES: tuple[Framed, ...] = (
    Hello(version=1, run="r-5f2a", role=Role.WORKER, rank=Rank(1), epoch=Epoch(3)),
    HelloRefused("this is run r-5f2a, not r-0b11"),
    ic.RouteAsked(
        request=REQUEST,
        attempt=0,
        chain=b"chain of block 0",
        namespace=b"namespace digest",
        prompt_tokens=20,
        output_tokens_max=64,
        choices=1,
        session="s-1",
        priority=0,
        arrived_ns=Nanos(4_000_000_000),
        deadline_ns=None,
        excluded=(Rank(2),),
        draw=99,
    ),
    ic.BookingEnded(REQUEST, attempt=1),
    ic.BookingsOffered(requests=(REQUEST,), attempts=(0,), ranks=(Rank(1),), epochs=(Epoch(3),), prompt_tokens=(20,)),
    ic.StateAsked(4),
    ic.DecisionsAsked(number=5, requests=(REQUEST,), limit=10),
    ic.RouteDecided(
        REQUEST, attempt=0, decision=12, rank=Rank(1), epoch=Epoch(3), reason="least cost", ready_blocks=1, awaits=None
    ),
    ic.Busy(REQUEST, attempt=0, retry_after_ns=Nanos(2_000_000_000)),
    ic.Unroutable(REQUEST, attempt=0, reason=ic.UnroutableReason.NEVER_FITS, tokens_max=4096),
    ic.StateReported(
        number=4,
        policy="marginal-time",
        ranks=(RANK_STATE,),
        page_table_hashes=38,
        bookings=1,
        decisions=17,
        stale_dropped=0,
        resyncs=1,
        transfers=TRANSFERS,
    ),
    ic.DecisionsReported(number=5, decisions=(DECISION,)),
    iw.Submit(
        request=REQUEST,
        attempt=0,
        namespace=b"namespace digest",
        prompt=b"\x0b\x00\x00\x00\x0c\x00\x00\x00",
        chain=b"",
        choices=(0, 1),
        outputs=(b"", b"\x0d\x00\x00\x00"),
        sampling=SAMPLING,
        stop=STOP,
        prompt_logprobs=None,
        priority=0,
        arrived_ns=Nanos(4_000_000_000),
        deadline_ns=Nanos(9_000_000_000),
        awaits=tr.Awaited(TRANSFER, blocks=2, until_ns=Nanos(8_000_000_000)),
    ),
    iw.Abort(REQUEST),
    iw.FinishChoice(REQUEST, choice=1, output_index=9),
    iw.ClearCache(6),
    iw.TokensProduced(
        requests=(7, 7),
        attempts=(0, 0),
        choices=(0, 1),
        output_indexes=(3, 4),
        tokens=(11, 2),
        logprobs=(LOGPROBS, None),
        finishes=(None, iw.Finish.END_TOKEN),
    ),
    iw.Accepted(REQUEST, attempt=0, cached_tokens=16, waited_ns=Nanos(1_000_000)),
    iw.Refused(REQUEST, attempt=0, reason=iw.RefusalReason.QUEUE_FULL, retry_after_ns=Nanos(500_000_000)),
    iw.Ended(REQUEST, attempt=0, reason=iw.EndReason.COMPLETE),
    iw.PromptScored(REQUEST, attempt=0, start=1, entries=(LOGPROBS,)),
    iw.CacheCleared(number=6, blocks=30),
    wc.WorkerJoined(
        namespace_base=b"base of the rank",
        block_size=16,
        blocks=128,
        model_tokens_max=2048,
        step_tokens_max=512,
        sequences_max=32,
        rates=RATES,
    ),
    wc.Report(
        version=Version(8),
        added=b"chain of block 0chain of block 1",
        removed=b"",
        accepted=(REQUEST,),
        ended=(),
        prefill_requests=(REQUEST,),
        prefill_tokens=(4,),
        load=LOAD,
        rates=RATES,
        totals=TOTALS,
    ),
    wc.FullReport(
        version=Version(9),
        part=0,
        parts=1,
        hashes=b"chain of block 0",
        requests=(REQUEST,),
        prefill_tokens=(4,),
        load=attrs.evolve(LOAD, step_began_ns=None),
        rates=RATES,
        totals=TOTALS,
    ),
    wc.ReportWanted(),
    wc.DrainBegun(),
    tr.PrepareSource(
        TRANSFER,
        mode=tr.TransferMode.MOVE,
        target=Rank(2),
        target_epoch=Epoch(5),
        chain=b"chain of block 0chain of block 1",
        first=1,
        deadline_ns=Nanos(9_000_000_000),
    ),
    tr.PrepareTarget(
        TRANSFER,
        means=tr.CopyMeans.READ,
        source=Rank(1),
        source_epoch=Epoch(3),
        chain=b"chain of block 0chain of block 1",
        first=1,
        deadline_ns=Nanos(9_000_000_000),
    ),
    tr.BeginCopy(TRANSFER, blocks=(BlockId(17),), generations=(Generation(3),)),
    tr.BeginSend(TRANSFER, first=1),
    tr.Confirm(TRANSFER),
    tr.Publish(TRANSFER, lease_until_ns=Nanos(0)),
    tr.Finalize(TRANSFER),
    tr.AbortTransfer(TRANSFER),
    tr.SourcePrepared(TRANSFER, blocks=(BlockId(17),), generations=(Generation(3),)),
    tr.TargetPrepared(TRANSFER, first=1, blocks=1),
    tr.TransferRefused(TRANSFER, tr.TransferRefusal.ANCHOR_MISSING),
    tr.Copied(TRANSFER, size_bytes=29_360_128, copy_ns=Nanos(7_000_000)),
    tr.Confirmed(TRANSFER),
    tr.Published(TRANSFER, version=Version(8)),
    tr.TransferEnded(TRANSFER, tr.TransferEnd.FINALIZED, blocks_freed=1),
    tr.TransferAsked(
        number=8,
        source=Rank(1),
        target=Rank(2),
        mode=tr.TransferMode.COPY,
        means=tr.CopyMeans.READ,
        chain=b"chain of block 0chain of block 1",
        first=1,
        copy_ns=Nanos(2_000_000_000),
        lease_ns=Nanos(0),
    ),
    tr.TransferDecided(number=8, transfer=None, denial=tr.TransferDenial.SOURCE_BUSY),
)

_INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
_PRIORITY = st.integers(PRIORITY_MIN, PRIORITY_MAX)
_COUNT = st.integers(0, 1 << 20)
_CHOICE = st.integers(0, CHOICES_MAX - 1)
_RATE = st.floats(0, 1e15)
_PENALTY = st.floats(-100, 100)
_SHARE = st.floats(0, 2)
_OPTIONAL_COUNT = st.none() | st.integers(0, LOGPROBS_MAX)
_DIGEST = st.binary(min_size=16, max_size=16)
_HASHES = st.lists(_DIGEST, max_size=4).map(b"".join)
_CHAIN = st.lists(_DIGEST, min_size=1, max_size=4).map(b"".join)
_RANK = st.integers(0, 63)
_FIRST = st.integers(0, (1 << 17) - 1)


def _tokens(least: int) -> st.SearchStrategy[bytes]:
    return st.lists(st.binary(min_size=4, max_size=4), min_size=least, max_size=5).map(b"".join)


def _columns(draw: st.DrawFn, length: int, hint: Any) -> tuple[Any, ...]:
    return tuple(draw(st.lists(values(hint), min_size=length, max_size=length)))


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type that the wire allows."""
    hint = getattr(hint, "__supertype__", hint)
    if hint in _NARROWED:
        return _NARROWED[hint]
    if get_origin(hint) in (UnionType, Union):
        return st.one_of([values(item) for item in get_args(hint)])
    if get_origin(hint) is tuple:
        items = get_args(hint)
        if items[-1] is Ellipsis:
            return st.lists(values(items[0]), max_size=4).map(tuple)
        return st.tuples(*map(values, items))
    if issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    return records(hint)


def records(kind: type) -> st.SearchStrategy[Any]:
    """Any record (or named tuple) of this kind that keeps within the bounds."""
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name in kind.__annotations__}
    return st.builds(kind, **{name: values(hint) for name, hint in hints.items()} | _BOUNDED.get(kind, {}))


@st.composite
def _row_records(draw: st.DrawFn, kind: type, columns: tuple[str, ...]) -> Any:
    """A record whose named columns have one length."""
    length = draw(st.integers(0, 4))
    hints = get_type_hints(kind)
    counts = _COUNTS.get(kind, ())
    rows = {name: _columns(draw, length, _Count if name in counts else get_args(hints[name])[0]) for name in columns}
    return attrs.evolve(draw(records(kind)), **rows)


class _Count:
    """Stands for an integer that cannot be negative."""


_NARROWED: dict[Any, st.SearchStrategy[Any]] = {
    _Count: _COUNT,
    int: _INTEGERS,
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: st.text(st.characters(codec="utf-8"), max_size=12),
    bytes: st.binary(max_size=12),
    type(None): st.none(),
}
_BOUNDED: dict[type, dict[str, st.SearchStrategy[Any]]] = {
    TokenLogprobs: {"top_tokens": st.just((4, 5)), "top_logprobs": st.just((-0.5, -1.0))},
    SamplingSettings: {
        "temperature": _SHARE,
        "top_p": _SHARE,
        "top_k": _COUNT,
        "min_p": _SHARE,
        "presence_penalty": _PENALTY,
        "frequency_penalty": _PENALTY,
        "repetition_penalty": st.floats(0.01, 100),
        "logit_bias": st.lists(st.tuples(_COUNT, _PENALTY), max_size=4).map(tuple),
        "logprobs": _OPTIONAL_COUNT,
    },
    StopSettings: {
        "output_tokens_max": _COUNT,
        "output_tokens_min": _COUNT,
        "ends": st.lists(_COUNT, max_size=4).map(tuple),
        "hidden_ends": st.lists(_COUNT, max_size=4).map(tuple),
    },
    Rates: dict.fromkeys(attrs.fields_dict(Rates), _RATE),
    wc.Load: dict.fromkeys(attrs.fields_dict(wc.Load), _COUNT),
    wc.Totals: dict.fromkeys(attrs.fields_dict(wc.Totals), _COUNT),
    ic.RouteDecided: {"rank": st.integers(0, 63)},
    ic.Busy: {"retry_after_ns": _COUNT},
    iw.Refused: {"retry_after_ns": _COUNT},
    iw.Accepted: {"cached_tokens": _COUNT, "waited_ns": _COUNT},
    iw.FinishChoice: {"choice": _CHOICE, "output_index": _COUNT},
    iw.PromptScored: {"start": _COUNT},
    ic.Candidate: {"rank": st.integers(0, 63)},
    ic.DecisionsAsked: {"limit": st.integers(0, DECISIONS_KEPT)},
    ic.RouteAsked: {
        "chain": _HASHES,
        "namespace": _DIGEST,
        "prompt_tokens": st.integers(64, 1 << 20),
        "choices": st.integers(1, CHOICES_MAX),
        "output_tokens_max": _COUNT,
        "draw": st.integers(0, (1 << 63) - 1),
        "priority": _PRIORITY,
    },
    iw.Submit: {
        "namespace": _DIGEST,
        "prompt": _tokens(1),
        "chain": st.just(b""),
        "choices": st.just((0, 3)),
        "outputs": st.tuples(_tokens(0), _tokens(0)),
        "prompt_logprobs": _OPTIONAL_COUNT,
        "priority": _PRIORITY,
    },
    wc.WorkerJoined: {
        "namespace_base": _DIGEST,
        "block_size": st.sampled_from((8, 16, 512)),
        "blocks": st.integers(1, 1 << 24),
        "model_tokens_max": st.integers(1, 1 << 20),
        "step_tokens_max": st.integers(1, 1 << 20),
        "sequences_max": st.integers(1, 1 << 20),
    },
    wc.Report: {"added": _HASHES, "removed": _HASHES},
    wc.FullReport: {"hashes": _HASHES, "part": st.just(1), "parts": st.just(2)},
    iw.TokensProduced: {"logprobs": st.just(())},
    tr.Awaited: {"blocks": _FIRST, "until_ns": _COUNT},
    tr.PrepareSource: {"target": _RANK, "chain": _CHAIN, "first": st.just(0), "deadline_ns": _COUNT},
    tr.PrepareTarget: {"source": _RANK, "chain": _CHAIN, "first": st.just(0), "deadline_ns": _COUNT},
    tr.TransferAsked: {
        "source": _RANK,
        "target": _RANK,
        "chain": _CHAIN,
        "first": st.just(0),
        "copy_ns": st.integers(1, 1 << 40),
        "lease_ns": _COUNT,
    },
    tr.BeginCopy: {"blocks": st.just((5, 4)), "generations": st.tuples(_COUNT, _COUNT)},
    tr.BeginSend: {"first": _FIRST},
    tr.Publish: {"lease_until_ns": _COUNT},
    tr.SourcePrepared: {"blocks": st.just((5, 4)), "generations": st.tuples(_COUNT, _COUNT)},
    tr.TargetPrepared: {"first": _FIRST, "blocks": st.integers(1, 16_384)},
    tr.Copied: {"size_bytes": _COUNT, "copy_ns": _COUNT},
    tr.Published: {"version": st.integers(1, 1 << 20)},
    tr.TransferEnded: {"blocks_freed": _COUNT},
}
_ROWS: dict[type, tuple[str, ...]] = {
    ic.BookingsOffered: ("requests", "attempts", "ranks", "epochs", "prompt_tokens"),
    iw.TokensProduced: ("requests", "attempts", "choices", "output_indexes", "tokens", "logprobs", "finishes"),
    wc.Report: ("prefill_requests", "prefill_tokens"),
    wc.FullReport: ("requests", "prefill_tokens"),
}
_COUNTS: dict[type, tuple[str, ...]] = {
    ic.BookingsOffered: ("ranks", "prompt_tokens"),
    iw.TokensProduced: ("choices", "output_indexes", "tokens"),
    wc.Report: ("prefill_tokens",),
    wc.FullReport: ("prefill_tokens",),
}


def framed(kind: type) -> st.SearchStrategy[Framed]:
    """Any record of this kind that may be framed."""
    return _row_records(kind, _ROWS[kind]) if kind in _ROWS else records(kind)
