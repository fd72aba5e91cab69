"""An exact model of integers: whatever goes wrong with a KV cache shows in its tokens.

A slot of the pool holds a number made of its token, its position and every slot before it, as they are found through
the block table of the row that writes it. A token is sampled from numbers made of every slot up to the last input. So
a wrong block, a stale block, one that was never written, a wrong position, or a write into somebody else's block
changes what follows. `reference_choice` computes the same stream without any cache.

Rows of one step read the pool as it was before that step, as no step may use what another row of it writes.
"""

import json
import mmap
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import attrs

from lmpool.core.cost import prefill_ns, prefill_pairs, step_ns
from lmpool.core.ids import BlockId, Nanos, Slot
from lmpool.core.plan import (
    BatchPlan,
    PromptLogprobs,
    Replica,
    ReplicaError,
    Row,
    SequenceStart,
    StepResult,
    TokenLogprobs,
)
from lmpool.core.prefix import ModelIdentity, pack_tokens, unpack_tokens
from lmpool.core.rates import Rates
from lmpool.core.sampling import SamplingSettings, StopSettings, uniform
from lmpool.sim.integer_pool import IntegerPool
from lmpool.sim.integer_sampler import TokenCounts, sample, score

ARCHITECTURE = "LMPoolIntegerModel"
SLOT_BYTES = 8
BLOCKS_DEFAULT = 1024
RATES_DEFAULT = Rates(step=1e6, prefill=1e4, prefill_context=1.0, decode=1e4, decode_context=10.0)

_SLOT = struct.Struct("<QQ")
_RATES = ("step", "prefill", "prefill_context", "decode", "decode_context")


class _Context:
    """Everything before a position, as one running digest of slots."""

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=SLOT_BYTES)

    def extend(self, slots: bytes) -> None:
        self._digest.update(slots)

    def slot(self, token: int, position: int) -> bytes:
        """What belongs into the slot of `token` at `position`, all before it being in the context. Never zero."""
        digest = self._digest.copy()
        digest.update(_SLOT.pack(token, position))
        return digest.digest()

    def ends_with(self, token: int) -> int:
        """What the next token is made of; the context includes `token`, its last."""
        digest = self._digest.copy()
        digest.update(b"next" + token.to_bytes(SLOT_BYTES, "little"))
        return int.from_bytes(digest.digest(), "little")


@attrs.define
class _Live:
    """What a runner keeps of a sequence."""

    start: SequenceStart
    counts: TokenCounts
    prompt: Sequence[int]
    last: int | None
    """The last sampled token."""


def step_cost(rates: Rates, plan: BatchPlan) -> Nanos:
    """A row of one token is a decode."""
    decodes = [row for row in plan.rows if row.length == 1]
    prefills = [row for row in plan.rows if row.length > 1]
    pairs = sum(prefill_pairs(row.length, row.start) for row in prefills)
    prefill = prefill_ns(rates, sum(row.length for row in prefills), pairs)
    return Nanos(round(prefill + step_ns(rates, len(decodes), sum(row.start for row in decodes))))


class IntegerRunner:
    """A `core.plan.Runner`. `pause` is called with the cost of a step before its result is returned."""

    def __init__(
        self,
        block_size: int,
        slots: bytearray | mmap.mmap,
        vocabulary: int,
        rates: Rates,
        pause: Callable[[Nanos], None],
    ) -> None:
        """`slots`: of all blocks, `SLOT_BYTES` each."""
        self._block_bytes = block_size * SLOT_BYTES
        self._block_size = block_size
        self._pool = slots
        self._vocabulary = vocabulary
        self._rates = rates
        self._pause = pause
        self._live: dict[Slot, _Live] = {}
        self._running: deque[tuple[Nanos, StepResult]] = deque()

    def launch(self, plan: BatchPlan) -> None:
        """Computes the step at once; writes are in the pool when the next step is launched."""
        for slot in plan.departures:
            self._live.pop(slot, None)  # absent if the step that was to begin it has failed
        for start in plan.starts:
            assert start.slot not in self._live, f"slot {start.slot} starts and has not departed"
            prompt = unpack_tokens(start.history)[: start.prompt_tokens]
            self._live[start.slot] = _Live(start, TokenCounts(start.history, start.prompt_tokens), prompt, None)
        writes: dict[int, bytes] = {}
        sampled: list[tuple[Slot, int, TokenLogprobs | None]] = []
        scored: list[PromptLogprobs] = []
        for row in plan.rows:
            self._run(row, writes, sampled, scored)
        for offset, value in writes.items():
            self._pool[offset : offset + SLOT_BYTES] = value
        slots, tokens, logprobs = zip(*sampled, strict=True) if sampled else ((), (), ())
        result = StepResult(plan.step, slots, tokens, logprobs, tuple(scored))
        self._running.append((step_cost(self._rates, plan), result))

    def collect(self) -> StepResult:
        cost, result = self._running.popleft()
        self._pause(cost)
        return result

    def spoil(self, plan: BatchPlan) -> None:
        """What a step that failed may leave: anything, where its rows write."""
        for row in plan.rows:
            for position in range(row.start, row.start + row.length) if row.writes else ():
                offset = self._offset(row.blocks, position)
                self._pool[offset : offset + SLOT_BYTES] = b"\xee" * SLOT_BYTES

    def _run(
        self,
        row: Row,
        writes: dict[int, bytes],
        sampled: list[tuple[Slot, int, TokenLogprobs | None]],
        scored: list[PromptLogprobs],
    ) -> None:
        live = self._live[row.slot]
        tokens = row.tokens or (_sampled(live),)
        assert len(row.blocks) == -(-(row.start + len(tokens)) // self._block_size), "a block table of another length"
        context = _Context()
        context.extend(self._read(row.blocks, 0, row.start))
        last = tokens[-1]
        entries: list[TokenLogprobs] = []
        for position, token in enumerate(tokens, row.start):
            offset = self._offset(row.blocks, position)
            if row.writes:
                slot = context.slot(token, position)
                assert offset not in writes, f"two rows of a step write slot {offset // SLOT_BYTES}"
                writes[offset] = slot
            else:
                slot = bytes(self._pool[offset : offset + SLOT_BYTES])
            context.extend(slot)
            if live.start.prompt_logprobs is not None and position + 1 < len(live.prompt):
                chance = context.ends_with(token)
                entries.append(score(chance, self._vocabulary, live.prompt[position + 1], live.start.prompt_logprobs))
        if entries:
            scored.append(PromptLogprobs(row.slot, row.start + 1, tuple(entries)))
        if row.samples:
            ends = live.start.ends if row.forbids_end else ()
            chance = context.ends_with(last)
            token, logprobs = sample(chance, self._vocabulary, live.start.sampling, live.counts, ends, row.uniform)
            live.last = token
            live.counts.add(token)
            sampled.append((row.slot, token, logprobs))

    def _offset(self, blocks: Sequence[BlockId], position: int) -> int:
        block, place = divmod(position, self._block_size)
        return blocks[block] * self._block_bytes + place * SLOT_BYTES

    def _read(self, blocks: Sequence[BlockId], begin: int, end: int) -> bytes:
        whole = b"".join(
            self._pool[block * self._block_bytes : (block + 1) * self._block_bytes]
            for block in blocks[: -(-end // self._block_size)]
        )
        return whole[begin * SLOT_BYTES : end * SLOT_BYTES]


def fresh_slots(block_size: int, blocks: int) -> bytearray:
    """In private memory, where nobody copies blocks."""
    return bytearray(blocks * block_size * SLOT_BYTES)


def _sampled(live: _Live) -> int:
    assert live.last is not None, "a row continues a sequence of which nothing was sampled"
    return live.last


def reference_choice(
    vocabulary: int, prompt: Sequence[int], sampling: SamplingSettings, stop: StopSettings, choice: int
) -> Iterator[tuple[int, TokenLogprobs | None]]:
    """The tokens of one choice, its end token included, computed from the prompt alone: no blocks, no cache."""
    context = _Context()
    for position, token in enumerate(prompt):
        context.extend(context.slot(token, position))
    counts = TokenCounts(pack_tokens(prompt), len(prompt))
    last = prompt[-1]
    for index in range(stop.output_tokens_max):
        forbidden = stop.ends if index < stop.output_tokens_min else ()
        chance = uniform(sampling.seed, choice, index)
        last, logprobs = sample(context.ends_with(last), vocabulary, sampling, counts, forbidden, chance)
        yield last, logprobs
        if last in stop.ends:
            return
        counts.add(last)
        context.extend(context.slot(last, len(prompt) + index))


def reference_tokens(
    vocabulary: int, prompt: Sequence[int], sampling: SamplingSettings, stop: StopSettings, choice: int
) -> tuple[int, ...]:
    return tuple(token for token, _ in reference_choice(vocabulary, prompt, sampling, stop, choice))


def reference_scores(vocabulary: int, prompt: Sequence[int], best: int) -> Iterator[TokenLogprobs]:
    """The log-probabilities of a prompt from its second token on."""
    context = _Context()
    for position, token in enumerate(prompt[:-1]):
        context.extend(context.slot(token, position))
        yield score(context.ends_with(token), vocabulary, prompt[position + 1], best)


class IntegerOrder(Protocol):
    """What a worker's order says about its replica."""

    @property
    def model_folder(self) -> str: ...
    @property
    def block_size(self) -> int: ...
    @property
    def kv_blocks(self) -> int | None: ...
    @property
    def kv_bytes(self) -> int | None: ...
    @property
    def model_tokens_max(self) -> int | None: ...


@attrs.frozen
class IntegerFacts:
    """`config.json` of a model folder with `"architectures": ["LMPoolIntegerModel"]`."""

    vocabulary: int
    """`vocab_size`"""
    tokens_max: int
    """`max_position_embeddings`"""
    steps_in_flight_max: int
    """`steps_in_flight_max`, 1 if absent"""
    copy_block_ns: int
    """`copy_block_ns`, 0 if absent: how long a block takes to be copied from another pool"""
    rates: Rates
    """`step_ns`, `prefill_ns`, `prefill_context_ns`, `decode_ns`, `decode_context_ns`; what is absent has a default"""


def read_facts(folder: Path) -> IntegerFacts:
    """Raises ReplicaError."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
        if ARCHITECTURE not in config["architectures"]:
            raise ValueError(f"its architectures are {config['architectures']}")
        rates = {name: float(config.get(f"{name}_ns", getattr(RATES_DEFAULT, name))) for name in _RATES}
        return IntegerFacts(
            int(config["vocab_size"]),
            int(config["max_position_embeddings"]),
            int(config.get("steps_in_flight_max", 1)),
            int(config.get("copy_block_ns", 0)),
            Rates(**rates),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = f"it needs architectures [{ARCHITECTURE!r}], vocab_size and max_position_embeddings"
        raise ReplicaError(f"{path} does not describe an integer model: {error!r}", hint) from error


def integer_replica(order: IntegerOrder, pause: Callable[[Nanos], None]) -> Replica:
    """Raises ReplicaError. `pause` makes a step last as long as its rates say, or returns at once."""
    facts = read_facts(Path(order.model_folder))
    block_bytes = order.block_size * SLOT_BYTES
    if order.kv_blocks is not None:
        blocks = order.kv_blocks
    elif order.kv_bytes is not None:
        blocks = order.kv_bytes // block_bytes
    else:
        blocks = BLOCKS_DEFAULT
    pool = IntegerPool(blocks, block_bytes, Nanos(facts.copy_block_ns), pause)
    return Replica(
        runner=IntegerRunner(order.block_size, pool.memory, facts.vocabulary, facts.rates, pause),
        pool=pool,
        identity=ModelIdentity(f"integer-{facts.vocabulary}", "uint64", "slots", order.block_size),
        blocks=blocks,
        model_tokens_max=min(facts.tokens_max, order.model_tokens_max or facts.tokens_max),
        vocabulary=facts.vocabulary,
        steps_in_flight_max=facts.steps_in_flight_max,
        rates=facts.rates,
        description=f"integers instead of a model: {blocks} blocks of {block_bytes} bytes",
    )
