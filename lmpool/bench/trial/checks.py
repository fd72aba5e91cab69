"""What speaks against a trial, from its evidence alone. `specs/trials.md`."""

from collections import Counter
from collections.abc import Iterator

from lmpool.bench.load.counters import Proof, proof, rank_counters
from lmpool.bench.load.figures import percentile
from lmpool.bench.load.run import LATE_SHARE
from lmpool.bench.trial.drain import LIVE
from lmpool.bench.trial.evidence import Evidence
from lmpool.bench.trial.metrics import METRICS, metrics
from lmpool.bench.trial.spec import Venue
from lmpool.core.explanation import request_word
from lmpool.core.ids import SECOND
from lmpool.core.messages.ingress_control import RankState
from lmpool.core.route import POLICIES


def problems(evidence: Evidence) -> tuple[str, ...]:
    """Why the trial is not valid. Empty: it is."""
    told = [*evidence.outcome.faults, *_answers(evidence), *_ranks(evidence)]
    if told:
        return tuple(told)  # the rest would only say so again
    return (*_accounts(evidence), *_decisions(evidence), *_client(evidence), *cache_proof(evidence).doubts)


def cache_proof(evidence: Evidence) -> Proof:
    """What the replicas' counters say of the cache condition."""
    counters = evidence.counters
    before, after = rank_counters(counters.before.ranks), rank_counters(counters.after.ranks)
    sharing = evidence.workload.sharing.tokens
    return proof(evidence.spec.cache, "counters of the replicas", before, after, sharing)


def _answers(evidence: Evidence) -> Iterator[str]:
    workload, requests = evidence.workload, evidence.requests
    if [one.number for one in requests] != list(range(workload.requests)):
        yield f"{len(requests)} answers are told of {workload.requests} requests"
        return
    kinds = Counter(one.fault for one in requests if one.fault)
    if kinds:
        shown = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        yield f"{kinds.total()} of {workload.requests} requests failed: {shown}"
        return
    wrong = [one.number for one in requests if one.output_tokens != one.wanted_tokens]
    if wrong:
        yield f"{len(wrong)} answers have not the length that was asked for, request {wrong[0]} first"
    silent = [one.number for one in requests if not one.pieces or one.cached_tokens is None]
    if silent:
        yield f"{len(silent)} answers came without content or counts, request {silent[0]} first"
    totals = (sum(one.prompt_tokens or 0 for one in requests), sum(one.wanted_tokens for one in requests))
    if totals != (workload.prompt_tokens, workload.output_tokens):
        planned = (workload.prompt_tokens, workload.output_tokens)
        yield f"prompt and output tokens are {totals} by the answers, {planned} by the workload"


def _ranks(evidence: Evidence) -> Iterator[str]:
    """Whether there are counters of the replicas that were asked for."""
    spec, arm, counters = evidence.spec, evidence.spec.placed, evidence.counters
    for when, state in (("before", counters.before), ("after", counters.after)):
        if len(state.ranks) != arm.replicas:
            yield f"counters {when} the run are of {len(state.ranks)} replicas instead of {arm.replicas}"
        for rank in state.ranks:
            if rank.membership != LIVE:
                yield f"replica {rank.rank} was {rank.membership} {when} the run"
            elif rank.blocks != spec.kv_blocks:
                yield f"replica {rank.rank} has {rank.blocks} blocks instead of {spec.kv_blocks}"
    if counters.after.policy != POLICIES[arm.policy]().name:
        yield f"the policy was {counters.after.policy} instead of {arm.policy}"
    if [rank.epoch for rank in counters.before.ranks] != [rank.epoch for rank in counters.after.ranks]:
        yield "a replica began anew during the run"


def _accounts(evidence: Evidence) -> Iterator[str]:
    """Whether every block and every booking was given back, and every token is accounted for."""
    after = evidence.counters.after
    for rank in after.ranks:
        yield from _held(rank)
    if after.bookings:
        yield f"{after.bookings} bookings are open after the run"
    if after.transfers.under_way:
        yield f"{len(after.transfers.under_way)} transfers are under way after the run"
    found = metrics(evidence)
    if found["computed_tokens"] + found["cached_tokens"] < found["prompt_tokens"]:
        yield "the replicas count fewer prompt tokens than were answered"
    if found["cached_tokens"] > found["prompt_tokens"]:
        yield "the replicas count more cached tokens than were asked for"
    missing = [name for name, metric in METRICS.items() if metric.is_always and name not in found]
    if missing:
        yield f"there is no {', '.join(missing)}"


def _held(rank: RankState) -> Iterator[str]:
    held = rank.blocks - rank.blocks_free - rank.blocks_cached
    if held:
        yield f"replica {rank.rank} holds {held} blocks after the run"
    at_work = rank.waiting + rank.prefilling + rank.decoding
    if at_work:
        yield f"replica {rank.rank} has {at_work} sequences after the run"
    if rank.steps_failed:
        yield f"{rank.steps_failed} steps of replica {rank.rank} failed"


def _decisions(evidence: Evidence) -> Iterator[str]:
    """Whether the log has every one, so that each request finds its own."""
    numbers = [decision.number for decision in evidence.decisions]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True:
        yield "decisions are missing from the log"
    decided = {request_word(one.request) for one in evidence.decisions if one.rank is not None}
    lost = [one.number for one in evidence.requests if one.request not in decided]
    if lost:
        yield f"{len(lost)} requests have no decision, request {lost[0]} first"
    routed = sum(rank.routed for rank in evidence.counters.after.ranks)
    routed -= sum(rank.routed for rank in evidence.counters.before.ranks)
    sent = sum(decision.rank is not None for decision in evidence.decisions)
    if routed != sent:
        yield f"control counts {routed} routes, and the log has {sent}"


def _client(evidence: Evidence) -> Iterator[str]:
    if evidence.spec.venue is Venue.SIMULATOR:
        return
    late = sorted(one.lateness_ns / SECOND for one in evidence.requests if one.lateness_ns is not None)
    median = metrics(evidence)["ttft_p50_s"]
    bound = max(evidence.spec.late_max_s, LATE_SHARE * median)
    for what, late_s in (("sent", percentile(late, 99)), ("read", evidence.outcome.late_p99_s)):
        if late_s > bound:
            yield f"the client could not keep up: it {what} {late_s * 1e3:.0f} ms late (p99), allowed {bound * 1e3:.0f}"
