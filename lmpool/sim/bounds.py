"""What no routing can pass: the reuse of one cache that all ranks would share.

Requests are walked in the order of their arrival, as if each were computed at once; a closed-loop request arrives after
the pauses before it alone. A cache keeps prompts, and an answer where another request continues it. Only what leads a
prompt in complete blocks counts, as with the workers.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator

import attrs

from lmpool.core.block_pool import BlockPool
from lmpool.core.ids import BlockHash, StepNumber
from lmpool.core.prefix import HASH_BYTES, chain_length, hash_at, split_chain
from lmpool.sim.prompts import Prompts
from lmpool.sim.trace import Trace

_NO_STEP = StepNumber(0)


@attrs.frozen
class Bounds:
    """Reused prompt tokens over all prompt tokens."""

    pooled: float
    """One cache of the summed capacity that reclaims as the workers do: least frequent with ageing, leaves first."""
    pooled_lru: float
    """The same, least recently used first."""
    infinite: float


def bounds(trace: Trace, prompts: Prompts, blocks: int, block_size: int) -> Bounds:
    """`blocks`: of all ranks together."""
    walk = list(_walk(trace, prompts, block_size))
    tokens = sum(prompts.lengths)

    def share(blocks_reused: Callable[[bytes, bytes], int]) -> float:
        return sum(blocks_reused(chain, kept) for chain, kept in walk) * block_size / tokens

    return Bounds(share(_Pooled(blocks).take), share(_Recent(blocks).take), share(_Endless().take))


@attrs.frozen
class Sharing:
    """What a trace itself allows, whatever the policy: shares that one endless cache would find."""

    block_size: int
    requests: float
    """Of requests, those of which at least one complete block was seen earlier."""
    tokens: float
    """Of prompt tokens, those in the longest such beginnings."""


def sharing(trace: Trace, prompts: Prompts, block_size: int) -> Sharing:
    cache = _Endless()
    found = [cache.take(chain, kept) for chain, kept in _walk(trace, prompts, block_size)]
    tokens = sum(found) * block_size / sum(prompts.lengths)
    return Sharing(block_size, sum(blocks > 0 for blocks in found) / len(found), tokens)


def _walk(trace: Trace, prompts: Prompts, block_size: int) -> Iterator[tuple[bytes, bytes]]:
    """Chains of the prompts in order of arrival, each with the chain that stays cached."""
    continued = {request.continues: number for number, request in enumerate(trace.requests)}
    moments: list[int] = []
    for request in trace.requests:
        before = request.continues
        moments.append((moments[before] if before is not None else 0) + request.pause_ns)
        if request.at_ns is not None:
            moments[-1] = request.at_ns
    order = sorted(range(len(moments)), key=lambda number: (moments[number], number))
    chains = {number: prompts.chain(number, prompts.packed(number)) for number in range(len(moments))}
    for number in order:
        chain = kept = chains[number]
        follower = continued.get(number)
        if follower is not None:
            # The last token of an answer is never computed.
            tokens = prompts.lengths[number] + trace.requests[number].output_tokens - 1
            kept = chains[follower][: tokens // block_size * HASH_BYTES]
        yield chain, kept


class _Pooled:
    def __init__(self, blocks: int) -> None:
        self._pool = BlockPool(blocks)

    def take(self, chain: bytes, kept: bytes) -> int:
        pool = self._pool
        reused = pool.resident_depth(chain)
        depth = pool.resident_depth(kept)
        table = pool.pin(kept, depth)
        fresh = pool.allocate(min(chain_length(kept) - depth, pool.available))
        for position, block in enumerate(fresh, start=depth):
            table.append(pool.publish(block, hash_at(kept, position), table[-1] if table else None, _NO_STEP))
        pool.release(table, _NO_STEP)
        return reused


class _Recent:
    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._known: OrderedDict[BlockHash, None] = OrderedDict()

    def take(self, chain: bytes, kept: bytes) -> int:
        """The last block of a chain counts as used first, so that leaves go before what they stand on."""
        known = self._known
        reused = _leading(chain, known)
        for digest in reversed(split_chain(kept)):
            known[digest] = None
            known.move_to_end(digest)
        while len(known) > self._blocks:
            known.popitem(last=False)
        return reused


class _Endless:
    def __init__(self) -> None:
        self._known: dict[BlockHash, None] = {}

    def take(self, chain: bytes, kept: bytes) -> int:
        reused = _leading(chain, self._known)
        self._known.update(dict.fromkeys(split_chain(kept)))
        return reused


def _leading(chain: bytes, known: dict[BlockHash, None]) -> int:
    for position, digest in enumerate(split_chain(chain)):
        if digest not in known:
            return position
    return chain_length(chain)
