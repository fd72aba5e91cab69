"""A runner of exact integers: the next token depends on every key and value reachable through the block table.

The value at a position is a digest of the token there and of the value before it, read through the block table. A
sampled token is a digest of all values of the row. So whatever is wrongly reused, overwritten or read too early shows.
"""

from collections import deque
from hashlib import blake2b

from lmpool.core.plan import NOT_FINITE, BatchPlan, PromptLogprobs, Row, SequenceStart, StepResult, TokenLogprobs

VOCABULARY = 1000


def number(*parts: int) -> int:
    data = b"".join(part.to_bytes(8, "little") for part in parts)
    return int.from_bytes(blake2b(data, digest_size=7).digest(), "little")


def value_after(before: int, token: int) -> int:
    return number(before, token)


def sample(values: list[int], chance: float, forbidden: tuple[int, ...]) -> int:
    """Greedy where chance is 0; the tokens in `forbidden` are passed over."""
    token = number(*values, int(chance * 2**53)) % VOCABULARY
    while token in forbidden:
        token = (token + 1) % VOCABULARY
    return token


def reference(prompt: list[int], count: int, ends: tuple[int, ...], minimum: int, chances: list[float]) -> list[int]:
    """Output of a request that runs alone and without any cache."""
    values: list[int] = []
    for token in prompt:
        values.append(value_after(values[-1] if values else 0, token))
    output: list[int] = []
    while len(output) < count:
        token = sample(values, chances[len(output)], ends if len(output) < minimum else ())
        output.append(token)
        values.append(value_after(values[-1] if values else 0, token))
        if token in ends and len(output) > minimum:
            break
    return output


class IntegerRunner:
    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.memory: dict[tuple[int, int], int] = {}
        self.blocks = blocks
        self.starts: dict[int, SequenceStart] = {}
        self.last: dict[int, int] = {}
        self.launched: deque[BatchPlan] = deque()
        self.not_finite: set[int] = set()
        """Slots whose next sample is not finite."""

    def launch(self, plan: BatchPlan) -> None:
        """Checks the plan against those that run: no block that a row writes is in another sequence's table."""
        self.launched.append(plan)
        seen = [(step.step, row) for step in self.launched for row in step.rows]
        for _, row in seen:
            written = self.written_blocks(row)
            for _, other in seen:
                if other.slot != row.slot:
                    assert not written & set(other.blocks), f"{other} has a block that {row} writes"
        assert len({row.slot for row in plan.rows}) == len(plan.rows)

    def written_blocks(self, row: Row) -> set[int]:
        if not row.writes:
            return set()
        size = self.block_size
        return set(row.blocks[row.start // size : (row.start + row.length - 1) // size + 1])

    def collect(self) -> StepResult:
        plan = self.launched.popleft()
        for slot in plan.departures:
            del self.starts[slot]
            self.last.pop(slot, None)
        for start in plan.starts:
            assert start.slot not in self.starts, "started twice"
            self.starts[start.slot] = start
        slots: list[int] = []
        tokens: list[int] = []
        scores: list[PromptLogprobs] = []
        for row in plan.rows:
            values = self.compute(row)
            start = self.starts[row.slot]
            if start.prompt_logprobs is not None and row.start + 1 < start.prompt_tokens:
                ends = range(row.start + 1, min(row.start + row.length + 1, start.prompt_tokens))
                entries = tuple(TokenLogprobs(0, float(values[end - 1] % 97), (), ()) for end in ends)
                scores.append(PromptLogprobs(row.slot, row.start + 1, entries))
            if row.samples:
                token = sample(values, row.uniform, start.ends if row.forbids_end else ())
                if row.slot in self.not_finite:
                    self.not_finite.discard(row.slot)
                    token = NOT_FINITE
                self.last[row.slot] = token
                slots.append(row.slot)
                tokens.append(token)
        return StepResult(plan.step, tuple(slots), tuple(tokens), (None,) * len(slots), tuple(scores))  # type: ignore[arg-type]

    def fail(self) -> BatchPlan:
        """The oldest step is lost; what it wrote is garbage."""
        plan = self.launched.popleft()
        for slot in plan.departures:
            del self.starts[slot]
        for start in plan.starts:
            self.starts[start.slot] = start
        for row in plan.rows:
            for position in range(row.start, row.start + row.length):
                if row.writes:
                    self.memory[self.place(row, position)] = -1 & 0xFFFF
            self.last[row.slot] = 0
        return plan

    def compute(self, row: Row) -> list[int]:
        size = self.block_size
        end = row.start + row.length
        assert len(row.blocks) == -(-end // size)
        values = [self.memory[self.place(row, position)] for position in range(row.start)]
        for offset, token in enumerate(row.tokens or (self.last[row.slot],)):
            value = value_after(values[-1] if values else 0, max(token, 0))
            place = self.place(row, row.start + offset)
            if row.writes:
                self.memory[place] = value
            assert self.memory[place] == value
            values.append(value)
        return values

    def place(self, row: Row, position: int) -> tuple[int, int]:
        return row.blocks[position // self.block_size], position % self.block_size
