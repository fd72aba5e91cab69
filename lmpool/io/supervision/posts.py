"""Which processes a run consists of, what each is ordered to do, and the environment it starts in."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from lmpool.core.ids import Epoch
from lmpool.core.route import POLICIES
from lmpool.io.orders import ControlOrder, IngressOrder, PlacementOrder, WorkerOrder
from lmpool.io.settings.tree import Settings
from lmpool.io.supervision.child_process import python_path
from lmpool.io.supervision.computing import computing_environment
from lmpool.io.supervision.keeper import Post
from lmpool.io.supervision.machine import cores, gpus
from lmpool.io.topology import Reading, all_pairs, cuda_pairs, listed_pairs, run_smi

REPLICAS_ON_CPU = 2
SHARED_MEMORY = "shm"
"""As calibration files call it."""


@attrs.frozen
class Scale:
    """How many replicas, with how many threads, and why, as lines for the operator."""

    replicas: int
    threads: int
    lines: tuple[str, ...]


def scale_of(settings: Settings, environment: Mapping[str, str]) -> Scale:
    pool = settings.pool
    here = cores()
    devices = gpus(environment) if settings.model.device != "cpu" else 0
    if pool.replicas is not None:
        replicas, why = pool.replicas, "as ordered"
    elif devices:
        replicas, why = devices, "one for each GPU"
    else:
        replicas, why = min(REPLICAS_ON_CPU, here), "the default on CPU"
    threads = pool.threads if pool.threads is not None else max(1, here // replicas)
    lines = [f"{_counted(replicas, 'replica')} ({why}), {_counted(threads, 'thread')} each, {_counted(here, 'core')}"]
    if replicas * threads > here and not devices:
        lines.append(
            f"more threads than cores ({replicas * threads} > {here}): fewer --replicas or --threads are faster"
        )
    return Scale(replicas, threads, tuple(lines))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def reading_of(settings: Settings, replicas: int, environment: Mapping[str, str]) -> Reading:
    """May take seconds: nvidia-smi is asked for the links of devices. Raises TopologyError."""
    device, pool = settings.model.device, settings.pool
    on_cpu = device == "cpu" or (device == "auto" and not gpus(environment))
    if pool.transfer_path == "auto" and not on_cpu:
        return Reading(None, ())
    path = SHARED_MEMORY if pool.transfer_path == "auto" else pool.transfer_path
    if settings.routing.placement == "off" or replicas == 1 or (on_cpu and path != SHARED_MEMORY):
        return Reading(path, ())  # the replicas refuse a path that is not theirs
    if pool.transfer_pairs is not None:
        return Reading(path, listed_pairs(pool.transfer_pairs, replicas))
    return Reading(path, all_pairs(replicas) if on_cpu else cuda_pairs(replicas, environment, run_smi))


@attrs.frozen
class Run:
    """What all processes of one run have in common."""

    id: str
    folder: Path
    model_folder: Path
    scale: Scale
    reading: Reading
    settings: Settings
    program: Sequence[str]
    """Of children."""


def policy_line(settings: Settings) -> str:
    """With what an alias stands for."""
    name = settings.routing.policy
    same = [other for other in POLICIES if POLICIES[other] is POLICIES[name] and other != name]
    return f"policy {name} ({same[0]})" if same else f"policy {name}"


def served_names(settings: Settings, model_folder: Path) -> tuple[str, ...]:
    """What clients may call the model: the names ordered, or what the operator wrote and the last part of that."""
    if settings.model.served_model_name:
        return settings.model.served_model_name
    written = settings.model.model or model_folder.name
    return tuple(dict.fromkeys((written, Path(written).name or written)))


def worker_post(run: Run, rank: int, environment: Mapping[str, str]) -> Post:
    model, pool, batch = run.settings.model, run.settings.pool, run.settings.batch

    def order(epoch: Epoch) -> WorkerOrder:
        return WorkerOrder(
            run=run.id,
            run_folder=str(run.folder),
            rank=rank,
            epoch=epoch,
            model_folder=str(run.model_folder),
            device=model.device,
            dtype=model.dtype,
            threads=run.scale.threads,
            block_size=pool.block_size,
            kv_blocks=pool.kv_blocks,
            kv_bytes=pool.kv_memory,
            replicas=run.scale.replicas,
            model_tokens_max=model.max_model_len,
            step_tokens_max=batch.step_tokens,
            sequences_max=batch.sequences,
            waiting_requests_max=batch.waiting_requests,
            waiting_tokens_max=batch.waiting_tokens,
            calibration_file=_calibration_file(run.settings),
            transfer_path=pool.transfer_path,
            sums_transfers=run.settings.pool.transfer_checksum == "on",
            log_level=run.settings.log.log_level,
        )

    computing = computing_environment(environment, run.scale.threads)
    return Post(f"worker {rank}", order, python_path(computing), (), run.program)


def _calibration_file(settings: Settings) -> str | None:
    path = settings.routing.calibration
    return None if path is None else os.path.abspath(path)


def _placement_order(run: Run) -> PlacementOrder:
    return PlacementOrder(
        calibration_file=_calibration_file(run.settings),
        model_folder=str(run.model_folder),
        block_size=run.settings.pool.block_size,
        path=run.reading.path,
        pairs=run.reading.pairs,
    )


def control_post(run: Run, environment: Mapping[str, str]) -> Post:
    routing = run.settings.routing

    def order(epoch: Epoch) -> ControlOrder:
        return ControlOrder(
            run=run.id,
            run_folder=str(run.folder),
            epoch=epoch,
            policy=routing.policy,
            replicas=run.scale.replicas,
            wait_max_s=routing.wait_max_seconds,
            placement=_placement_order(run) if routing.placement == "auto" else None,
            record_file=None if routing.record_control is None else os.path.abspath(routing.record_control),
            record_bytes_max=routing.record_control_size,
            log_level=run.settings.log.log_level,
        )

    return Post("control", order, python_path(environment), (), run.program)


def ingress_order(run: Run, epoch: Epoch, listen_fd: int) -> IngressOrder:
    http = run.settings.http
    return IngressOrder(
        run=run.id,
        run_folder=str(run.folder),
        epoch=epoch,
        replicas=run.scale.replicas,
        model_folder=str(run.model_folder),
        served_names=served_names(run.settings, run.model_folder),
        listen_fd=listen_fd,
        api_key_file=None if http.api_key_file is None else os.path.abspath(http.api_key_file),
        block_size=run.settings.pool.block_size,
        requests_max=http.requests,
        body_bytes_max=http.body_size,
        drain_s=run.settings.supervision.drain_seconds,
        log_level=run.settings.log.log_level,
    )


def ingress_post(run: Run, listen_fd: int, environment: Mapping[str, str]) -> Post:
    def order(epoch: Epoch) -> IngressOrder:
        return ingress_order(run, epoch, listen_fd)

    return Post("ingress", order, python_path(environment), (listen_fd,), run.program)
