"""The keys and values of all blocks of one rank, and the rule for how many blocks there are.

Layout: `[layers, 2, blocks + 1, block_size, kv_heads, head_dim]`. The last block is scratch: it takes the writes
of rows that must not write, and is never read.
"""

import mmap
import os

import attrs
import torch

from lmpool.core.plan import ReplicaError
from lmpool.gpu.device import DTYPES
from lmpool.gpu.memory import HostMemory, size_text

LAYOUT = "layers.kv.blocks.tokens.heads.dim"
"""Name of the layout inside a block, for `ModelIdentity.kv_layout`."""

CPU_BYTES_USUAL = 1 << 30
CPU_BYTES_MAX = 4 << 30
"""Default rule. Every byte is touched at the start, which took 0.4 to 4 seconds a GiB on virtual machines; more than
the usual is taken only so that one context of the longest length fits."""

CUDA_SHARE = 0.85
"""Default rule: the rest is for activations, logits and captured graphs."""

RESERVE_BYTES = 512 << 20
"""Host memory that must stay free beside the pool: activations, logits, the processes themselves."""


@attrs.frozen
class BlockShape:
    layers: int
    block_size: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.token_bytes


@attrs.frozen
class PoolSize:
    blocks: int
    reason: str


@attrs.frozen
class SizeOrder:
    """What the operator said of the size, and what bounds it."""

    kv_blocks: int | None
    kv_bytes: int | None
    sequences_max: int
    context_tokens: int
    """Longest context that the model and the operator allow."""


class KVPool:
    """Slots are numbered `block * block_size + offset`. `descriptor` is the memfd of a CPU pool, None on CUDA."""

    def __init__(self, shape: BlockShape, blocks: int, tensor: torch.Tensor, descriptor: int | None) -> None:
        self.shape = shape
        self.blocks = blocks
        self.tensor = tensor
        self.descriptor = descriptor
        self.layers = [tensor[layer] for layer in range(shape.layers)]
        """Each `[2, blocks + 1, block_size, kv_heads, head_dim]`."""
        self.key_slots = [layer[0].flatten(0, 1) for layer in self.layers]
        self.value_slots = [layer[1].flatten(0, 1) for layer in self.layers]
        """Each `[slots, kv_heads, head_dim]`, the same memory."""

    @property
    def scratch(self) -> int:
        """Number of the scratch block."""
        return self.blocks

    @property
    def size_bytes(self) -> int:
        return self.tensor.nbytes


def _dimensions(shape: BlockShape, blocks: int) -> tuple[int, ...]:
    return (shape.layers, 2, blocks + 1, shape.block_size, shape.kv_heads, shape.head_dim)


def _fitted(shape: BlockShape, wanted_bytes: int, order: SizeOrder) -> int:
    """Blocks in `wanted_bytes`, but no more than all sequences at their longest can use."""
    sequence_blocks = -(-order.context_tokens // shape.block_size)
    return max(1, min(wanted_bytes // shape.block_bytes, order.sequences_max * sequence_blocks))


def _ordered(shape: BlockShape, order: SizeOrder) -> PoolSize | None:
    if order.kv_blocks is not None:
        return PoolSize(order.kv_blocks, "as ordered by --kv-blocks")
    if order.kv_bytes is not None:
        blocks = order.kv_bytes // shape.block_bytes
        if blocks < 1:
            what = f"--kv-memory {size_text(order.kv_bytes)} holds no block of {size_text(shape.block_bytes)}"
            raise ReplicaError(what, f"use --kv-memory {size_text(shape.block_bytes * 64)} or more")
        return PoolSize(blocks, "as ordered by --kv-memory")
    return None


def cpu_pool_size(shape: BlockShape, order: SizeOrder, memory: HostMemory, replicas: int) -> PoolSize:
    """Raises ReplicaError where what was ordered holds no block."""
    ordered = _ordered(shape, order)
    if ordered is not None:
        return ordered
    share = memory.total // 4 // replicas
    context_bytes = -(-order.context_tokens // shape.block_size) * shape.block_bytes
    wanted = min(share, CPU_BYTES_MAX, max(CPU_BYTES_USUAL, context_bytes))
    rule = (
        f"{size_text(CPU_BYTES_USUAL)} or one context of {order.context_tokens} tokens if that is more, at most"
        f" {size_text(CPU_BYTES_MAX)}, a quarter of {size_text(memory.total)} over {replicas} replicas,"
        f" and {order.sequences_max} contexts"
    )
    return PoolSize(_fitted(shape, wanted, order), rule)


def cuda_pool_size(shape: BlockShape, order: SizeOrder, free_bytes: int, sharers: int) -> PoolSize:
    """`free_bytes` of the device after the weights; `sharers` replicas use this device."""
    ordered = _ordered(shape, order)
    if ordered is not None:
        return ordered
    blocks = _fitted(shape, int(free_bytes * CUDA_SHARE) // sharers, order)
    rule = f"{CUDA_SHARE:.0%} of {size_text(free_bytes)} free after weights over {sharers} replicas on the device"
    return PoolSize(blocks, f"{rule}, at most {order.sequences_max} contexts of {order.context_tokens} tokens")


def check_room(shape: BlockShape, size: PoolSize, free_bytes: int, weight_bytes: int) -> None:
    """Raises ReplicaError, with figures and the flag that helps, if the pool would not fit into `free_bytes`."""
    wanted = (size.blocks + 1) * shape.block_bytes
    room = free_bytes - RESERVE_BYTES
    if wanted <= room:
        return
    fitting = max(0, room // shape.block_bytes - 1)
    what = (
        f"the KV pool of {size.blocks} blocks ({size_text(wanted)}; {size.reason}) does not fit:"
        f" {size_text(free_bytes)} free after {size_text(weight_bytes)} of weights,"
        f" of which {size_text(RESERVE_BYTES)} must stay free"
    )
    if fitting == 0:
        raise ReplicaError(what, "free memory or use a smaller model")
    tokens = fitting * shape.block_size
    raise ReplicaError(what, f"use --kv-blocks {fitting} or less; that holds contexts of up to {tokens} tokens")


def allocate_cpu_pool(shape: BlockShape, blocks: int) -> KVPool:
    """Really allocates: every page is there before the first use. Raises ReplicaError."""
    dimensions = _dimensions(shape, blocks)
    size = (blocks + 1) * shape.block_bytes
    descriptor = os.memfd_create("lmpool-kv", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        os.close(descriptor)
        what = f"the kernel refused {size_text(size)} of shared memory for the KV pool: {error.strerror}"
        raise ReplicaError(what, "use a smaller --kv-memory, or raise the memory limit of the container") from error
    # populated at once: 3 GiB take 1.2 s here, and 6 s of page faults spread over the first requests otherwise
    mapping = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    # frombuffer keeps a reference to the mapping in the tensor's storage, so it lives as long as any view
    tensor = torch.frombuffer(mapping, dtype=shape.dtype).view(dimensions)
    return KVPool(shape, blocks, tensor, descriptor)


def allocate_cuda_pool(shape: BlockShape, blocks: int, device: torch.device) -> KVPool:
    """Raises ReplicaError."""
    try:
        tensor = torch.zeros(_dimensions(shape, blocks), dtype=shape.dtype, device=device)
    except torch.cuda.OutOfMemoryError as error:
        size = size_text((blocks + 1) * shape.block_bytes)
        raise ReplicaError(f"{device} has no room for a KV pool of {size}", "use a smaller --kv-memory") from error
    return KVPool(shape, blocks, tensor, None)


def layout_name(shape: BlockShape) -> str:
    """All that must agree before one rank may read another's blocks, except dtype and block size."""
    return f"{LAYOUT}/{shape.layers}x2x{shape.kv_heads}x{shape.head_dim}"


def shape_of(layout: str, block_size: int, dtype: str) -> BlockShape:
    """What `layout_name` has written."""
    name, _, numbers = layout.partition("/")
    assert name == LAYOUT
    layers, _, kv_heads, head_dim = map(int, numbers.split("x"))
    return BlockShape(layers, block_size, kv_heads, head_dim, DTYPES[dtype])
