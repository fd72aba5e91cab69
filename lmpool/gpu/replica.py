"""From an order to a runner that is ready, with the facts that its worker machine needs."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from lmpool.core.plan import Replica, ReplicaError
from lmpool.core.prefix import ModelIdentity
from lmpool.gpu.calibrate import Bounds, measure_rates
from lmpool.gpu.device import DeviceChoice, DtypeChoice, choose_device, choose_dtype, dtype_name
from lmpool.gpu.kv_pool import (
    BlockShape,
    KVPool,
    PoolSize,
    SizeOrder,
    allocate_cpu_pool,
    allocate_cuda_pool,
    check_room,
    cpu_pool_size,
    cuda_pool_size,
    layout_name,
)
from lmpool.gpu.memory import host_memory, size_text
from lmpool.gpu.model import Decoder, ModelFacts, load_decoder
from lmpool.gpu.paths.shared_pool import readable_pool
from lmpool.gpu.revision import weights_revision
from lmpool.gpu.runner import TorchRunner
from lmpool.gpu.source import context_refusal


class ReplicaOrder(Protocol):
    """The part of `io.orders.WorkerOrder` that concerns the model; gpu does not import io."""

    @property
    def rank(self) -> int: ...
    @property
    def model_folder(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def kv_blocks(self) -> int | None: ...
    @property
    def kv_bytes(self) -> int | None: ...
    @property
    def replicas(self) -> int: ...
    @property
    def transfer_path(self) -> str: ...
    @property
    def model_tokens_max(self) -> int | None: ...
    @property
    def step_tokens_max(self) -> int: ...
    @property
    def sequences_max(self) -> int: ...


def load_replica(order: ReplicaOrder, progress: Callable[[str], None]) -> Replica:
    """Loads, checks, allocates, warms up and measures; takes seconds. Raises ReplicaError."""
    device = choose_device(order.device, order.rank)
    dtype = choose_dtype(order.dtype, device.device)
    if device.device.type == "cpu":
        torch.set_num_threads(order.threads)
    folder = Path(order.model_folder)
    decoder = load_decoder(folder, dtype.dtype, device.device, progress)
    wanted = _wanted_context(order, decoder.facts)
    shape = decoder.facts.block_shape(order.block_size)
    size = _pool_size(order, shape, wanted, device.device)
    pool = _allocated(shape, size, decoder.facts, device.device)
    shared = readable_pool(pool, order.transfer_path)
    context = _context_tokens(order, wanted, pool)
    runner = TorchRunner(decoder, pool)
    progress("measuring step times")
    bounds = Bounds(pool.blocks, order.block_size, context, order.step_tokens_max, order.sequences_max)
    rates = measure_rates(runner, bounds)
    blocks = f"{pool.blocks} blocks of {order.block_size} tokens"
    return Replica(
        runner=runner,
        pool=shared,
        identity=ModelIdentity(weights_revision(folder), dtype_name(shape.dtype), layout_name(shape), order.block_size),
        blocks=pool.blocks,
        model_tokens_max=context,
        vocabulary=decoder.facts.vocabulary,
        steps_in_flight_max=1 if device.device.type == "cpu" else 2,
        rates=rates,
        description="; ".join(
            (
                _device_text(order, device, dtype),
                f"weights {size_text(decoder.facts.weight_bytes)}",
                f"KV pool {blocks}, {size_text(pool.size_bytes)} ({size.reason})",
                _context_text(order, wanted, context, decoder),
            )
        ),
    )


def _wanted_context(order: ReplicaOrder, facts: ModelFacts) -> int:
    """What the model and the operator allow; the pool may hold less."""
    if order.model_tokens_max is None:
        return facts.context_tokens
    if order.model_tokens_max > facts.context_tokens:
        raise context_refusal(order.model_tokens_max, facts.context_tokens, facts.context_reason)
    return order.model_tokens_max


def _pool_size(order: ReplicaOrder, shape: BlockShape, context_tokens: int, device: torch.device) -> PoolSize:
    size_order = SizeOrder(order.kv_blocks, order.kv_bytes, order.sequences_max, context_tokens)
    if device.type == "cpu":
        return cpu_pool_size(shape, size_order, host_memory(), order.replicas)
    free, _ = torch.cuda.mem_get_info(device)
    sharers = -(-order.replicas // torch.cuda.device_count())
    return cuda_pool_size(shape, size_order, free, sharers)


def _allocated(shape: BlockShape, size: PoolSize, facts: ModelFacts, device: torch.device) -> KVPool:
    if device.type == "cpu":
        check_room(shape, size, host_memory().free, facts.weight_bytes)
        return allocate_cpu_pool(shape, size.blocks)
    free, _ = torch.cuda.mem_get_info(device)
    check_room(shape, size, free, facts.weight_bytes)
    return allocate_cuda_pool(shape, size.blocks, device)


def _context_tokens(order: ReplicaOrder, wanted: int, pool: KVPool) -> int:
    """Raises ReplicaError if the operator named a context that the pool cannot hold."""
    held = pool.blocks * pool.shape.block_size
    if order.model_tokens_max is None or held >= wanted:
        return min(wanted, held)
    blocks = -(-wanted // pool.shape.block_size)
    what = (
        f"--max-model-len {wanted} needs {blocks} blocks ({size_text(blocks * pool.shape.block_bytes)}) for one request"
    )
    raise ReplicaError(
        f"{what}, and the KV pool has {pool.blocks} ({size_text(pool.size_bytes)})",
        f"use --kv-blocks {blocks} or more, or --max-model-len {held}",
    )


def _device_text(order: ReplicaOrder, device: DeviceChoice, dtype: DtypeChoice) -> str:
    threads = f", {order.threads} threads" if device.device.type == "cpu" else ""
    return f"{device.device} ({device.reason}){threads}, {dtype_name(dtype.dtype)} ({dtype.reason})"


def _context_text(order: ReplicaOrder, wanted: int, context: int, decoder: Decoder) -> str:
    if context < wanted:
        flag = "--kv-memory" if order.kv_blocks is None else "--kv-blocks"
        return f"contexts of {context} tokens, which is what the KV pool holds (the model has {wanted}; raise {flag})"
    reason = (
        decoder.facts.context_reason if context == decoder.facts.context_tokens else "as ordered by --max-model-len"
    )
    return f"contexts of {context} tokens ({reason})"
