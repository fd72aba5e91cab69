"""What the supervisor orders of a child at its start, and what a child notes back: JSON lines on its channel."""

from typing import TypeAlias

import attrs

from lmpool.io.topology import RankPair


@attrs.frozen
class PrepareOrder:
    """Turn what the operator named into a local folder with safetensors, tokenizer and template."""

    model: str | None
    """A folder, a GGUF file or a hub id; None: the bundled default."""
    cache: str
    """Folder for downloads and conversions."""
    model_tokens_max: int | None
    """Longest context that the operator wants, so that one beyond the model's limit is refused before it is loaded."""


@attrs.frozen
class WorkerOrder:
    run: str
    """Id of this run of the supervisor; a peer of another run is refused."""
    run_folder: str
    rank: int
    epoch: int
    model_folder: str
    device: str
    """auto, cpu, cuda or cuda:N."""
    dtype: str
    """auto, float32, bfloat16 or float16."""
    threads: int
    """CPU threads of this worker."""
    block_size: int
    kv_blocks: int | None
    """Exactly one of the two, or neither for the default rule."""
    kv_bytes: int | None
    replicas: int
    """How many workers share the machine's memory."""
    model_tokens_max: int | None
    step_tokens_max: int
    sequences_max: int
    waiting_requests_max: int
    waiting_tokens_max: int
    calibration_file: str | None
    """To be refused if it was made for another model or KV form."""
    transfer_path: str
    """auto or cuda-ipc: how other workers read this one's blocks."""
    sums_transfers: bool
    """Whether blocks that have arrived are compared with the source's."""
    log_level: str


@attrs.frozen
class PlacementOrder:
    """Control may begin transfers by itself."""

    calibration_file: str | None
    """None: it assumes prices, of the blocks of this model."""
    model_folder: str
    block_size: int
    path: str | None
    """By which workers read each other's blocks, as calibration files call it; None where there is none."""
    pairs: tuple[RankPair, ...]
    """Between which replicas."""


@attrs.frozen
class ControlOrder:
    run: str
    run_folder: str
    epoch: int
    policy: str
    replicas: int
    wait_max_s: float
    """Longest predicted wait before a request is told that the server is busy."""
    placement: PlacementOrder | None
    record_file: str | None
    """Its events are recorded to this file, with the epoch as a suffix."""
    record_bytes_max: int
    log_level: str


@attrs.frozen
class IngressOrder:
    run: str
    run_folder: str
    epoch: int
    replicas: int
    model_folder: str
    served_names: tuple[str, ...]
    listen_fd: int
    """A listening socket that the supervisor bound; the child inherits it."""
    api_key_file: str | None
    block_size: int
    requests_max: int
    """Open requests, choices counted; more are refused with 429."""
    body_bytes_max: int
    drain_s: float
    log_level: str


Order: TypeAlias = PrepareOrder | WorkerOrder | ControlOrder | IngressOrder


@attrs.frozen
class Progress:
    """A line for the operator while something takes its time."""

    text: str


@attrs.frozen
class Ready:
    """The child serves. `facts` are lines for the operator."""

    facts: tuple[str, ...]


@attrs.frozen
class Prepared:
    model_folder: str


@attrs.frozen
class Failed:
    """The child is about to end; the supervisor's last lines repeat this."""

    what: str
    hint: str


@attrs.frozen
class Beat:
    """Once a second from the step loop: whether work waits, and how many steps were completed."""

    working: bool
    steps: int


Notice: TypeAlias = Progress | Ready | Prepared | Failed | Beat


@attrs.frozen
class Drain:
    """The supervisor wants nothing new taken; end when what is live has ended, or after `seconds`."""

    seconds: float
