"""`lmpool explain`: from an answer of /pool/decisions to lines."""

from typing import Any

import attrs
import orjson
import pytest

from lmpool.core.explanation import decision_lines, request_lines
from lmpool.core.ids import Epoch, Rank, RequestId
from lmpool.core.limits import DECISIONS_KEPT
from lmpool.core.messages.ingress_control import Candidate
from lmpool.io.explain import explanation_lines, fetch_explanation
from lmpool.io.explained import Explained, RequestNames
from lmpool.io.http.pool import explained_document
from lmpool.io.pool_client import ClientError
from tests.io.http.scripted import DECISION, HISTORY

DOWN = Candidate(Rank(1), False, "down", 0, 0, 64, (), 0.0)
MADE = attrs.evolve(DECISION, candidates=(*DECISION.candidates, DOWN))


def document(explained: Explained) -> Any:
    """As it comes over HTTP."""
    return orjson.loads(orjson.dumps(explained_document(explained)))


def test_records_arrive_as_they_left() -> None:
    assert explanation_lines("x", document(Explained((MADE,), (HISTORY,)))) == request_lines(HISTORY, [MADE])


def test_of_several_prompts_each_is_shown() -> None:
    other = RequestId(Epoch(1), 6)
    decisions = (attrs.evolve(MADE, request=other, number=4), MADE)
    lines = explanation_lines("x", document(Explained(decisions, (attrs.evolve(HISTORY, request=other), HISTORY))))
    assert [line for line in lines if line.startswith("request ")] == [
        "request 1-5: 64 prompt tokens",
        "request 1-6: 64 prompt tokens",
    ]
    assert lines.count("") == 1


def test_decisions_are_shown_without_a_history() -> None:
    lines = explanation_lines("x", document(Explained((MADE,), ())))
    assert lines[0] == "request 1-5: what became of it is forgotten"
    assert lines[1:] == decision_lines(MADE, None)


def test_an_unknown_request_is_told_with_the_bounds() -> None:
    with pytest.raises(ClientError, match=rf"nothing is known of request '1-99': .*newest {DECISIONS_KEPT} decisions"):
        explanation_lines("1-99", document(Explained((), ())))


def test_another_form_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[object] = [{}, {"decisions": [{"number": 1}], "requests": []}, {"decisions": 3, "requests": []}, []]
    for answer in answers:
        monkeypatch.setattr("lmpool.io.explain.fetch_document", lambda *_, told=answer: told)
        with pytest.raises(ClientError, match="answers in another form"):
            fetch_explanation("http://pool", None, "1-2")


def test_names_mean_every_request_that_has_them() -> None:
    names = RequestNames(10)
    ids = [RequestId(Epoch(1), counter) for counter in range(4)]
    names.add(ids[0], ("label", "cmpl-1"))
    names.add(ids[1], ("label", "cmpl-2"))
    names.add(ids[2], ("other", "cmpl-3"))
    assert names.find("label") == (ids[0], ids[1])
    assert names.find("cmpl-3") == (ids[2],)
    assert names.find("1-3") == (ids[3],)
    assert names.find("1-3,1-2") == (ids[3], ids[2])
    assert names.find("1-3,label") == ()
    assert names.find("") == ()


def test_a_label_that_looks_like_an_inner_id_means_both() -> None:
    names = RequestNames(10)
    names.add(RequestId(Epoch(1), 7), ("1-2",))
    assert names.find("1-2") == (RequestId(Epoch(1), 7), RequestId(Epoch(1), 2))


def test_names_are_bounded_and_the_oldest_goes() -> None:
    names = RequestNames(2)
    for counter in range(3):
        names.add(RequestId(Epoch(1), counter), (f"label-{counter}",))
    assert [names.find(f"label-{counter}") for counter in range(3)] == [
        (),
        (RequestId(Epoch(1), 1),),
        (RequestId(Epoch(1), 2),),
    ]
