import re
from typing import Any

import attrs
import pytest

from lmpool.bench.load.counters import CacheCondition
from lmpool.bench.trial.checks import cache_proof, problems
from lmpool.bench.trial.evidence import Evidence
from lmpool.bench.trial.spec import Venue
from lmpool.core.ids import Epoch, Nanos
from lmpool.core.messages.ingress_control import RankState, StateReported
from lmpool.sim.bounds import Sharing
from tests.bench.trial.made import EVIDENCE, with_rank


def _with_request(number: int, **changes: Any) -> Evidence:
    changed = [attrs.evolve(one, **changes) if one.number == number else one for one in EVIDENCE.requests]
    return attrs.evolve(EVIDENCE, requests=tuple(changed))


def _after(state: StateReported) -> Evidence:
    return attrs.evolve(EVIDENCE, counters=attrs.evolve(EVIDENCE.counters, after=state))


def _with_rank(**changes: Any) -> Evidence:
    after = EVIDENCE.counters.after
    changed: RankState = attrs.evolve(after.ranks[1], **changes)
    return _after(with_rank(after, changed))


AFTER = EVIDENCE.counters.after
PLANTED: dict[str, tuple[Evidence, str]] = {
    "an answer is missing": (attrs.evolve(EVIDENCE, requests=EVIDENCE.requests[:-1]), "3 answers are told of 4"),
    "a request failed": (_with_request(2, fault="engine Busy"), "1 of 4 requests failed: 1 engine Busy"),
    "a length is wrong": (_with_request(1, output_tokens=2), "have not the length"),
    "counts are missing": (_with_request(1, cached_tokens=None), "without content or counts"),
    "a prompt was another": (_with_request(0, prompt_tokens=41), r"\(261, 12\) by the answers, \(260, 12\)"),
    "a rank is missing": (_after(attrs.evolve(AFTER, ranks=AFTER.ranks[:1])), "1 replicas instead of 2"),
    "a rank is down": (_with_rank(membership="down"), "replica 1 was down after the run"),
    "a rank began anew": (_with_rank(epoch=Epoch(9)), "a replica began anew"),
    "the budget is another": (_with_rank(blocks=299), "299 blocks instead of 300"),
    "the policy is another": (_after(attrs.evolve(AFTER, policy="session")), "the policy was session"),
    "blocks are held": (_with_rank(blocks_cached=97), "replica 1 holds 3 blocks"),
    "a sequence is left": (_with_rank(decoding=1), "replica 1 has 1 sequences"),
    "a step failed": (_with_rank(steps_failed=2), "2 steps of replica 1 failed"),
    "a booking is open": (_after(attrs.evolve(AFTER, bookings=1)), "1 bookings are open"),
    "tokens are not accounted for": (_with_rank(tokens_computed=520), "count fewer prompt tokens"),
    "too many are cached": (_with_rank(tokens_cached=400), "more cached tokens than were asked for"),
    "a decision is missing": (attrs.evolve(EVIDENCE, decisions=EVIDENCE.decisions[:2]), "2 requests have no decision"),
    "the log has a gap": (
        attrs.evolve(EVIDENCE, decisions=(*EVIDENCE.decisions[:1], *EVIDENCE.decisions[2:])),
        "decisions are missing from the log",
    ),
    "no decision was logged": (attrs.evolve(EVIDENCE, decisions=()), "decisions are missing from the log"),
    "routes are not all logged": (_with_rank(routed=4), "control counts 5 routes, and the log has 4"),
    "it was sent late": (_with_request(3, sent_ns=Nanos(150_000_000)), "the client could not keep up: it sent"),
    "it was read late": (
        attrs.evolve(EVIDENCE, outcome=attrs.evolve(EVIDENCE.outcome, late_p99_s=0.06)),
        "the client could not keep up: it read 60 ms late",
    ),
    "it was not cold": (
        attrs.evolve(EVIDENCE, workload=attrs.evolve(EVIDENCE.workload, sharing=Sharing(16, 0.5, 0.05))),
        "not cold",
    ),
    "the run itself failed": (attrs.evolve(EVIDENCE, outcome=attrs.evolve(EVIDENCE.outcome, faults=("x",))), "^x$"),
}


def test_whole_evidence_has_no_problem() -> None:
    assert problems(EVIDENCE) == ()


@pytest.mark.parametrize("fault", PLANTED)
def test_what_is_planted_is_found(fault: str) -> None:
    evidence, told = PLANTED[fault]
    found = problems(evidence)
    assert any(re.search(told, problem) for problem in found), found


def test_a_primed_cache_that_reuses_less_than_a_cold_one_could_is_doubted() -> None:
    primed = attrs.evolve(EVIDENCE, spec=attrs.evolve(EVIDENCE.spec, cache=CacheCondition.PRIMED))
    assert any("of a cold start" in doubt for doubt in cache_proof(primed).doubts)
    assert problems(primed) == cache_proof(primed).doubts


def test_lateness_of_the_client_counts_nothing_in_virtual_time() -> None:
    evidence, _ = PLANTED["it was read late"]
    assert problems(attrs.evolve(evidence, spec=attrs.evolve(evidence.spec, venue=Venue.SIMULATOR))) == ()
