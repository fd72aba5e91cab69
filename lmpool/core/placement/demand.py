"""Which chains are asked for: a bounded memory of the prompts that came, of which the oldest leave first.

A compressed tree. A block's hash stands for everything before it as well, so each node is found by the hash of its
first block, and where two prompts part a node ends.
"""

from heapq import nlargest
from math import exp

import attrs

from lmpool.core.ids import SECOND, BlockHash, Nanos
from lmpool.core.limits import TRANSFER_BLOCKS_MAX
from lmpool.core.prefix import HASH_BYTES, chain_length, common_blocks, hash_at

FADE_NS = 60 * SECOND
"""Visits fade by a factor e in this time: long enough that the next turn of a conversation meets the last one."""
NODES_MAX = 1024
"""Half of them are lists of what came once: some minutes of a busy server. All are looked at before each proposal."""
BYTES_MAX = 16 << 20
"""Of the packed chains of all nodes: a million blocks."""


@attrs.define
class DemandNode:
    chain: bytes
    """Packed, from the first block of all to the last of this node."""
    first: int
    """Blocks before this node's own."""
    weight: float
    """Visits, faded until `at`."""
    at: Nanos
    visits: int


@attrs.frozen
class HotChain:
    """A chain that was asked for more than once."""

    chain: bytes
    weight: float
    """Visits lately: each counts less the longer ago it was."""
    visits: int

    @property
    def blocks(self) -> int:
        return chain_length(self.chain)


class Demand:
    __slots__ = ("_bytes", "_hottest", "_nodes")

    def __init__(self) -> None:
        self._nodes: dict[BlockHash, DemandNode] = {}
        """By the hash of the first block; the one visited longest ago comes first. Visits come back before what
        follows them, so the first of all is always a leaf."""
        self._bytes = 0
        self._hottest: tuple[int, list[BlockHash]] | None = None
        """So many of them, kept until one is visited: all fade alike. No part of the state."""

    def __len__(self) -> int:
        return len(self._nodes)

    def note(self, now: Nanos, chain: bytes) -> None:
        """A request has come with this packed chain."""
        self._hottest = None
        chain = chain[: TRANSFER_BLOCKS_MAX * HASH_BYTES]
        blocks, depth = chain_length(chain), 0
        path: list[BlockHash] = []
        while depth < blocks:
            key = hash_at(chain, depth)
            node = self._nodes.get(key)
            if node is None:
                self._add(key, DemandNode(chain, depth, 1.0, now, 1))
                path.append(key)
                break
            last = chain_length(node.chain)
            depth = common_blocks(chain, node.chain, depth)
            if depth < last:
                self._split(key, node, depth)
            node.weight, node.at = _faded(node, now) + 1.0, now
            node.visits += 1
            path.append(key)
        for key in reversed(path):
            self._nodes[key] = self._nodes.pop(key)
        while len(self._nodes) > NODES_MAX or self._bytes > BYTES_MAX:
            self._drop_oldest()

    def hottest(self, now: Nanos, chains_max: int) -> tuple[HotChain, ...]:
        """Those with most visits times blocks, of chains that came at least twice."""
        if self._hottest is None or self._hottest[0] < chains_max:
            found = [
                (node.weight * exp((node.at - now) / FADE_NS) * len(node.chain), key)
                for key, node in self._nodes.items()
                if node.visits > 1
            ]
            self._hottest = chains_max, [key for _, key in nlargest(chains_max, found)]
        nodes = [self._nodes[key] for key in self._hottest[1][:chains_max]]
        return tuple([HotChain(node.chain, _faded(node, now), node.visits) for node in nodes])

    def _add(self, key: BlockHash, node: DemandNode) -> None:
        self._nodes[key] = node
        self._bytes += len(node.chain)

    def _split(self, key: BlockHash, node: DemandNode, depth: int) -> None:
        """The node keeps its blocks before `depth`; those from there on get one of their own."""
        rest = DemandNode(node.chain, depth, node.weight, node.at, node.visits)
        self._add(hash_at(node.chain, depth), rest)
        self._bytes -= len(node.chain)
        node.chain = node.chain[: depth * HASH_BYTES]
        self._bytes += len(node.chain)
        assert key == hash_at(node.chain, node.first)

    def _drop_oldest(self) -> None:
        node = self._nodes.pop(next(iter(self._nodes)))
        self._bytes -= len(node.chain)

    def audit(self) -> None:
        """Asserts the bounds, and that every node stands on one that was visited no earlier."""
        assert len(self._nodes) <= NODES_MAX
        assert self._bytes == sum(len(node.chain) for node in self._nodes.values()) <= BYTES_MAX
        ends: dict[BlockHash, None] = {}
        for key, node in reversed(self._nodes.items()):
            assert key == hash_at(node.chain, node.first)
            assert node.first == 0 or hash_at(node.chain, node.first - 1) in ends
            ends[hash_at(node.chain, chain_length(node.chain) - 1)] = None

    def digest_state(self) -> str:
        return repr(self._nodes)


def _faded(node: DemandNode, now: Nanos) -> float:
    return node.weight * exp((node.at - now) / FADE_NS)
