"""`lmpool explain`: what a running server tells of one request, in the words of core."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from lmpool.core.effects import Outcome
from lmpool.core.explanation import decision_lines, request_lines, request_word, unknown_lines
from lmpool.core.history import History, Visit
from lmpool.core.ids import Nanos, Rank, RequestId
from lmpool.core.limits import DECISIONS_KEPT
from lmpool.core.messages.ingress_control import Candidate, Decision
from lmpool.io.explained import parse_request_word
from lmpool.io.pool_client import ClientError, fetch_document


def fetch_explanation(url: str, key: str | None, word: str) -> list[str]:
    """Lines for people. Raises ClientError, also for a request of which the server knows nothing."""
    document = fetch_document(url, f"/pool/decisions?limit={DECISIONS_KEPT}&request={quote(word, safe='')}", key)
    try:
        return explanation_lines(word, document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ClientError(f"{url} answers in another form than this version reads ({error!r})") from error


def explanation_lines(word: str, document: Mapping[str, Any]) -> list[str]:
    """Of an answer of /pool/decisions. Raises ClientError if it is empty."""
    decisions = [_decision(made) for made in document["decisions"]]
    histories = {history.request: history for history in map(_history, document["requests"])}
    requests = sorted({decision.request for decision in decisions} | set(histories))
    if not requests:
        raise ClientError("\n".join(unknown_lines(word, document["kept"])))
    lines: list[str] = []
    for request in requests:
        made = sorted((one for one in decisions if one.request == request), key=lambda one: one.number)
        lines += [""] if lines else []
        if request in histories:
            lines += request_lines(histories[request], made)
        else:
            lines.append(f"request {request_word(request)}: what became of it is forgotten")
            lines += [line for one in made for line in decision_lines(one, None)]
    return lines


def _request(word: str) -> RequestId:
    request = parse_request_word(word)
    if request is None:
        raise ValueError(f"no request: {word!r}")
    return request


def _decision(made: Mapping[str, Any]) -> Decision:
    candidates = [_candidate(one) for one in made["candidates"]]
    names = next((tuple(one["terms"]) for one in made["candidates"] if one["eligible"]), ())
    return Decision(
        number=made["number"],
        request=_request(made["request"]),
        attempt=made["attempt"],
        at_ns=Nanos(made["at_ns"]),
        policy=made["policy"],
        rank=made["rank"],
        reason=made["reason"],
        prompt_tokens=made["prompt_tokens"],
        chain_blocks=made["chain_blocks"],
        term_names=names,
        candidates=tuple(candidates),
        fetch=made["fetch"] or "",
    )


def _candidate(one: Mapping[str, Any]) -> Candidate:
    return Candidate(
        rank=Rank(one["rank"]),
        eligible=one["eligible"],
        reason=one["reason"],
        ready_blocks=one["ready_blocks"],
        arriving_blocks=one["arriving_blocks"],
        uncached_tokens=one["uncached_tokens"],
        terms=tuple(map(_real, one["terms"].values())),
        cost=_real(one["cost"]),
    )


def _real(number: float | None) -> float:
    """JSON has no infinity: the server writes null."""
    return float("inf") if number is None else float(number)


def _history(told: Mapping[str, Any]) -> History:
    return History(
        request=_request(told["request"]),
        tenant=told["tenant"],
        arrived_ns=Nanos(told["arrived_ns"]),
        prompt_tokens=told["prompt_tokens"],
        output_tokens=told["output_tokens"],
        visits=tuple(Visit(**visit) for visit in told["visits"]),
        phase=told["phase"],
        outcome=None if told["outcome"] is None else Outcome(told["outcome"]),
        detail=told["detail"],
        ended_ns=told["ended_ns"],
    )
