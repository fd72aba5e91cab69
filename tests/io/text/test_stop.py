"""Stop strings: examples from what broke real clients, then the laws."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lmpool.io.text.stop import Released, StopMatcher

texts = st.text(alphabet="abc", max_size=40)
stops = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4)


def run(pieces: list[str], stops: list[str], *, includes_stop: bool = False) -> tuple[list[str], str | None]:
    """The pieces that leave, the flush included, and the stop that was found."""
    matcher = StopMatcher(stops, includes_stop=includes_stop)
    released: list[str] = []
    for piece in pieces:
        step = matcher.feed(piece)
        released.append(step.text)
        if step.stop is not None:
            return released, step.stop
    return [*released, matcher.flush()], None


def first_complete(text: str, stops: list[str]) -> tuple[int, str] | None:
    """End and name of the match that is complete first; of several there, the longest. Naive."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return end, max(complete, key=len)
    return None


def test_b02_a_stop_over_several_tokens_never_leaks() -> None:
    assert run(["ab", "cd", "ef", "gh"], ["bcde"]) == (["a", "", ""], "bcde")


def test_b02_text_before_a_stop_inside_one_token_is_kept() -> None:
    assert run(["xyz and END more"], ["END"]) == (["xyz and "], "END")


def test_b02_of_two_stops_that_overlap_the_one_complete_first_wins() -> None:
    assert run(["ab", "cd", "ef"], ["bcde", "cd"]) == (["a", "b"], "cd")
    assert run(["abcdef"], ["bcde", "cd"]) == (["ab"], "cd")


def test_b02_of_two_stops_complete_at_once_the_longer_is_cut() -> None:
    assert run(["ab", "cd"], ["cd", "bcd"]) == (["a", ""], "bcd")


def test_b02_a_stop_is_part_of_the_text_when_asked_for() -> None:
    assert run(["ab", "cd", "ef", "gh"], ["bcde"], includes_stop=True) == (["a", "", "bcde"], "bcde")


def test_b03_nothing_is_held_that_begins_no_stop() -> None:
    assert run(["hello", " world"], ["QQQQQQQQ"]) == (["hello", " world", ""], None)


def test_b03_what_was_held_arrives_at_the_end() -> None:
    assert run(["wait QQQ"], ["QQQQQQQQ"]) == (["wait ", "QQQ"], None)


def test_a_beginning_that_fails_is_released_at_once() -> None:
    matcher = StopMatcher(["aab"], includes_stop=False)
    assert matcher.feed("aa") == Released("", None)
    assert matcher.feed("a") == Released("a", None)
    assert matcher.feed("c") == Released("aac", None)


def test_without_stops_text_passes() -> None:
    assert run(["a", "b"], []) == (["a", "b", ""], None)


@given(text=texts, stops=stops, cuts=st.lists(st.integers(0, 40)))
def test_the_answer_does_not_depend_on_token_edges(text: str, stops: list[str], cuts: list[int]) -> None:
    edges = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[begin:end] for begin, end in pairwise(edges)]
    expected = first_complete(text, stops)
    released, found = run(pieces, stops)
    if expected is None:
        assert ("".join(released), found) == (text, None)
    else:
        end, stop = expected
        assert ("".join(released), found) == (text[: end - len(stop)], stop)


@given(text=texts, stops=stops)
def test_only_the_longest_real_beginning_is_held(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops, includes_stop=False)
    fed = left = ""
    for character in text:
        step = matcher.feed(character)
        fed += character
        left += step.text
        if step.stop is not None:
            return
        held = max(
            (size for stop in stops for size in range(len(stop)) if fed.endswith(stop[:size])),
            default=0,
        )
        assert left == fed[: len(fed) - held]
