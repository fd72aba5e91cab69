"""Workloads made from a seed: the same seed gives the same tokens, lengths and pauses on every machine.

Definitions follow the public studies that use them; `fingerprint` is stored with results so that two runs can be
shown to have had the same input.
"""

from collections.abc import Iterable
from hashlib import blake2b
from random import Random

import attrs

from lmpool.core.prefix import pack_tokens

FIRST_PLAIN_TOKEN = 1000
"""Random prompts avoid the low ids, where vocabularies keep their special tokens."""


@attrs.frozen
class Batch:
    """Prompts that are sent together."""

    prompts: tuple[tuple[int, ...], ...]
    output_tokens: int

    @property
    def fingerprint(self) -> str:
        return _fingerprint(self.prompts)


def shared_batch(requests: int, shared: int, own: int, output_tokens: int, vocabulary: int, seed: int) -> Batch:
    """`requests` prompts of `shared` common and `own` private random tokens."""
    random = Random(seed)
    common = _tokens(random, shared, vocabulary)
    prompts = tuple(common + _tokens(random, own, vocabulary) for _ in range(requests))
    return Batch(prompts, output_tokens)


@attrs.frozen
class Turn:
    pause_s: float
    """Between the end of the last answer and the sending of this turn: thinking, or a tool at work."""
    tokens: tuple[int, ...]
    """What the user or a tool adds; the prompt is all turns and answers before, and this."""
    output_tokens: int


@attrs.frozen
class Session:
    name: str
    turns: tuple[Turn, ...]

    @property
    def tokens_at_end(self) -> int:
        """Prompt of the last turn and its answer."""
        return sum(len(turn.tokens) + turn.output_tokens for turn in self.turns)


@attrs.frozen
class AgentSessions:
    """Closed loop: a session sends its next turn only after the answer to the last and a pause."""

    sessions: tuple[Session, ...]

    @property
    def fingerprint(self) -> str:
        return _fingerprint(turn.tokens for session in self.sessions for turn in session.turns)

    def blocks_at_end(self, block_size: int) -> int:
        """Blocks that hold every session at its last turn."""
        return sum(-(-session.tokens_at_end // block_size) for session in self.sessions)

    def prefill_floor(self, block_size: int) -> int:
        """Prefill tokens that no policy can avoid: all that is not in a complete block of the session's last turn."""
        computed = 0
        for session in self.sessions:
            history = cached = 0
            for turn in session.turns:
                computed += history + len(turn.tokens) - cached
                history += len(turn.tokens) + turn.output_tokens
                cached = (history - 1) // block_size * block_size
        return computed


def agent_sessions(sessions: int, turns: int, scale: float, vocabulary: int, seed: int) -> AgentSessions:
    """First turn about 256 tokens, later ones 32 to 160, answers 16 to 48, all times `scale`; pauses exponential with
    mean 1 s, cut at 4 s, and sessions begin within the first 2 s. Half of the later turns are short user words, half
    longer tool results.
    """
    random = Random(seed)

    def turn(index: int) -> Turn:
        span = random.choice(((32, 64), (96, 160))) if index else (192, 320)
        pause = min(4.0, random.expovariate(1.0)) if index else random.uniform(0, 2)
        tokens = _tokens(random, max(1, round(random.randint(*span) * scale)), vocabulary)
        return Turn(pause, tokens, max(1, round(random.randint(16, 48) * scale)))

    return AgentSessions(tuple(Session(f"session-{s}", tuple(turn(t) for t in range(turns))) for s in range(sessions)))


def _tokens(random: Random, count: int, vocabulary: int) -> tuple[int, ...]:
    return tuple(random.randrange(min(FIRST_PLAIN_TOKEN, vocabulary // 2), vocabulary) for _ in range(count))


def _fingerprint(prompts: Iterable[tuple[int, ...]]) -> str:
    digest = blake2b(digest_size=8)
    for prompt in prompts:
        packed = pack_tokens(prompt)
        digest.update(len(packed).to_bytes(8, "little") + packed)
    return digest.hexdigest()
