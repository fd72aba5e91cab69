from pathlib import Path

import pytest

from lmpool.core.ids import SECOND
from lmpool.sim.bounds import Bounds, bounds
from lmpool.sim.replay import Replay, make_prompts
from lmpool.sim.trace import Trace
from lmpool.sim.trace_formats import read_trace
from tests.sim.racks import RACK, asked, continued, mixed, trace

EXCERPT = Path(__file__).parent / "conversation_excerpt.jsonl"


def _bounds(made: Trace, blocks: int) -> Bounds:
    return bounds(made, make_prompts(made, 16), blocks, 16)


def test_an_infinite_cache_forgets_nothing_and_counts_whole_blocks() -> None:
    made = trace(asked(0, (1, 40), (2, 8)), asked(1, (1, 40), (3, 8)), asked(2, (4, 48)), asked(3, (1, 40), (5, 8)))
    assert _bounds(made, 1_000) == Bounds(64 / 192, 64 / 192, 64 / 192)


def test_a_small_pool_forgets_by_its_rule() -> None:
    """Room for 3 blocks: one is asked for again and again, then three others come once."""
    hot = [asked(10 * number, (1, 16), (100 + number, 1)) for number in range(4)]
    passing = [asked(100 + number, (200 + number, 16)) for number in range(3)]
    last = asked(200, (1, 16), (300, 1))
    found = _bounds(trace(*hot, *passing, last), 3)
    tokens = 5 * 17 + 3 * 16
    assert found.infinite == 4 * 16 / tokens
    assert found.pooled_lru == 3 * 16 / tokens
    assert found.pooled == 4 * 16 / tokens, "four uses outlast three passers-by"


def test_leaves_go_before_what_they_stand_on() -> None:
    made = trace(asked(0, (1, 32)), asked(1, (2, 16)), asked(2, (1, 32)))
    assert _bounds(made, 2).pooled_lru == 16 / 80
    assert _bounds(made, 2).pooled == 16 / 80


def test_an_answer_is_kept_where_it_is_continued() -> None:
    made = trace(asked(0, (1, 32), output=17), continued(0, 1.0, (2, 15)), asked(5 * SECOND / 1e6, (3, 32), output=17))
    assert _bounds(made, 100).infinite == 48 / (32 + 64 + 32)


def test_closed_loop_requests_are_walked_after_their_pauses() -> None:
    made = trace(
        asked(0, (1, 32), output=1), asked(1500, (2, 32)), continued(0, 1.0, (3, 32)), continued(0, 2.0, (3, 32))
    )
    found = _bounds(made, 4)
    assert found.infinite == (32 + 64) / 194


def test_no_policy_passes_the_infinite_cache() -> None:
    made = mixed(150)
    most = _bounds(made, RACK.replicas * RACK.kv_blocks).infinite
    for policy in ("default", "longest-prefix", "round-robin"):
        replay = Replay(made, make_prompts(made, 16), RACK, policy, 0)
        while replay.advance(150):
            pass
        assert 0 < replay.figures().reuse <= most


def test_the_excerpt_shares_its_first_block_at_least() -> None:
    made = read_trace(EXCERPT, None)
    found = bounds(made, make_prompts(made, 512), 16_000, 512)
    assert found.infinite == pytest.approx(found.pooled)
    assert found.infinite > 199 * 512 / sum(make_prompts(made, 512).lengths)
