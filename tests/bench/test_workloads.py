"""The same seed gives the same workload, and sizes are what the definitions say."""

import subprocess
import sys

from lmpool.bench.table import table_lines
from lmpool.bench.workloads import AgentSessions, Session, Turn, agent_sessions, shared_batch


def test_a_batch_shares_its_beginning_and_nothing_else() -> None:
    batch = shared_batch(4, 32, 8, 5, 1000, seed=7)
    assert len({prompt[:32] for prompt in batch.prompts}) == 1
    assert len({prompt[32:] for prompt in batch.prompts}) == 4
    assert {len(prompt) for prompt in batch.prompts} == {40}


def test_seeds_decide_everything() -> None:
    assert agent_sessions(3, 4, 1.0, 1000, 1) == agent_sessions(3, 4, 1.0, 1000, 1)
    assert agent_sessions(3, 4, 1.0, 1000, 1).fingerprint != agent_sessions(3, 4, 1.0, 1000, 2).fingerprint


def test_fingerprints_do_not_depend_on_the_process() -> None:
    program = "from lmpool.bench.workloads import *; print(agent_sessions(3, 4, 1.0, 1000, 1).fingerprint)"
    told = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert told == {agent_sessions(3, 4, 1.0, 1000, 1).fingerprint}


def test_turns_grow_within_their_bounds() -> None:
    workload = agent_sessions(8, 12, 1.0, 32_000, 3)
    for session in workload.sessions:
        first, *later = session.turns
        assert 192 <= len(first.tokens) <= 320
        assert all(32 <= len(turn.tokens) <= 160 and 16 <= turn.output_tokens <= 48 for turn in later)
        assert all(0 <= turn.pause_s <= 4 for turn in session.turns)


def test_blocks_at_the_end_count_every_session_up() -> None:
    workload = agent_sessions(2, 2, 1.0, 32_000, 3)
    assert workload.blocks_at_end(16) == sum(-(-session.tokens_at_end // 16) for session in workload.sessions)


def test_a_table_is_aligned() -> None:
    assert table_lines(("what", "n"), [("a", "1"), ("longer", "22")]) == ["what     n", "a        1", "longer  22"]


def test_the_prefill_floor_of_two_turns_by_hand() -> None:
    turns = (Turn(0, tuple(range(20)), 4), Turn(0, tuple(range(8)), 4))
    # 20 tokens of the first turn; then 24 + 8, of which one block of 16 is complete (the last output has no keys yet)
    assert AgentSessions((Session("one", turns),)).prefill_floor(16) == 20 + 16
