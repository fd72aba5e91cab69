"""All settings of a server, each in one place: type, bound, what it does, and why the default is what it is.

The tree is read from defaults, then a TOML file, then the environment, then flags (`settings_sources.py`).
"""

from pathlib import Path
from typing import Any

import attrs

from lmpool.core.limits import BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, PROMPT_TOKENS_MAX, RANKS_MAX
from lmpool.core.route import POLICIES
from lmpool.io.settings.knob import Count, Kind, Knob, Pathname, PowerOfTwo, Seconds, Size, Text, Texts, Word, one_of


@attrs.frozen
class _About:
    kind: Kind
    about: str
    reason: str


# An attrs field, which ruff's RUF009 takes for a value that instances would share where the type is a Path.
def _knob(default: object, kind: Kind, about: str, reason: str) -> Any:
    return attrs.field(default=default, metadata={_About: _About(kind, about, reason)})


@attrs.frozen
class ModelSettings:
    model: str | None = _knob(
        None,
        Text("a folder, a .gguf file or a hub id", 4096),
        "what to serve: a folder with safetensors, a GGUF file or a hub id (owner/name)",
        "without it, a small bundled model is fetched once and served",
    )
    served_model_name: tuple[str, ...] = _knob(
        (),
        Texts(Text("a printable name of at most 256 characters", 256)),
        "names that clients may use; the first stands in answers",
        "without it, MODEL as it was given and the last part of it",
    )
    max_model_len: int | None = _knob(
        None,
        Count(1, PROMPT_TOKENS_MAX),
        "longest context (prompt and output) in tokens",
        "without it, the model's own limit, or what the KV cache can hold where that is less",
    )
    device: str = _knob(
        "auto",
        Word(("auto", "cpu", "cuda"), r"cuda:[0-9]{1,2}", "cuda:N"),
        "where the replicas compute",
        "auto takes CUDA where there is a device, and says why",
    )
    dtype: str = _knob(
        "auto",
        one_of("auto", "float32", "bfloat16", "float16"),
        "number format of weights and KV cache",
        "auto takes bfloat16 where the device computes in it, else float32",
    )
    cache_folder: Path | None = _knob(  # noqa: RUF009
        None,
        Pathname("a folder that may be written"),
        "where downloaded and converted models are kept",
        "without it, lmpool in $XDG_CACHE_HOME or ~/.cache",
    )


@attrs.frozen
class PoolSettings:
    replicas: int | None = _knob(
        None,
        Count(1, RANKS_MAX),
        "how many copies of the model serve side by side",
        "without it, one for each NVIDIA GPU; on CPU two, or one where there is one core",
    )
    threads: int | None = _knob(
        None,
        Count(1, 1024),
        "CPU threads of each replica",
        "without it, cores / replicas, at least 1: more threads than cores cost 2.5 times the speed",
    )
    block_size: int = _knob(
        16,
        PowerOfTwo(BLOCK_SIZE_MIN, BLOCK_SIZE_MAX),
        "tokens in a block, the unit in which prefixes are shared",
        "small enough that little of a common prefix is lost, large enough that tables stay small",
    )
    kv_blocks: int | None = _knob(
        None,
        Count(2, 1 << 24),
        "size of each replica's KV cache in blocks",
        "without it and --kv-memory, a share of the memory that is free, by a rule printed at start",
    )
    kv_memory: int | None = _knob(
        None,
        Size(1 << 20),
        "size of each replica's KV cache in bytes, instead of --kv-blocks",
        "without it and --kv-blocks, a share of the memory that is free, by a rule printed at start",
    )
    transfer_checksum: str = _knob(
        "off",
        one_of("on", "off"),
        "on: blocks that were copied from another replica are read again at both ends and compared before they count",
        "a memory bus makes no mistakes that would not show elsewhere too, and summing takes longer than copying",
    )
    transfer_path: str = _knob(
        "auto",
        one_of("auto", "cuda-ipc"),
        "how replicas read each other's KV blocks. auto: through shared memory on CPU, not at all on CUDA; cuda-ipc: "
        "device to device on CUDA",
        "cuda-ipc was written from documentation and has not been run on hardware yet",
    )
    transfer_pairs: str | None = _knob(
        None,
        Text("pairs of ranks as 0-1 (both ways) or 0>1, with commas between", 65_536),
        "between which replicas KV blocks are placed",
        "without it, all of them on CPU; on CUDA those whose devices NVLinks connect, by nvidia-smi topo -m",
    )


@attrs.frozen
class BatchSettings:
    step_tokens: int = _knob(
        512,
        Count(16, 65_536),
        "most tokens a replica computes in one step; longer prompts are computed in chunks",
        "a longer chunk delays running streams by its whole time and gains little speed",
    )
    sequences: int = _knob(
        64,
        Count(1, 4096),
        "most sequences a replica computes at a time",
        "beyond it a step's time grows faster than its tokens",
    )
    waiting_requests: int = _knob(
        256,
        Count(1, 65_536),
        "most requests that wait at a replica; more are told that it is busy",
        "four times what runs at a time: some ten seconds of waiting",
    )
    waiting_tokens: int = _knob(
        1 << 20,
        Count(16, 1 << 30),
        "most prompt tokens that wait at a replica",
        "one longest possible prompt, or minutes of usual ones",
    )


@attrs.frozen
class RoutingSettings:
    policy: str = _knob(
        "default",
        one_of(*POLICIES),
        "how a replica is chosen for a request",
        "default is marginal-time, which prices every replica in time; the others are known routers, to compare with",
    )
    wait_max_seconds: float = _knob(
        60.0,
        Seconds(0.1, 3600),
        "longest predicted wait for a replica before a request is told that all are busy",
        "clients commonly give up after a minute",
    )
    placement: str = _knob(
        "auto",
        one_of("auto", "off"),
        "auto: KV blocks are copied between replicas, for requests and before them, where that saves more time than "
        "it takes; on CUDA only with --transfer-path",
        "it ends answers sooner where replicas would idle, and is not begun where it does not pay",
    )
    calibration: Path | None = _knob(  # noqa: RUF009
        None,
        Pathname("a file that lmpool calibrate has written"),
        "file of lmpool calibrate, made for this model and as many replicas, by which such copies are priced",
        "without it prices begin as assumptions, on the dear side; what copies really take corrects both",
    )
    record_control: Path | None = _knob(  # noqa: RUF009
        None,
        Pathname("a file that is not there yet, in a folder that may be written"),
        "file to record everything that control is told, for a replay; its life's number is appended (FILE.2)",
        "without it nothing is recorded; hashes, lengths and session names are in it, prompts are not",
    )
    record_control_size: int = _knob(
        64 << 20,
        Size(1 << 20),
        "largest recording; then it ends with a line in the log",
        "some minutes of eight busy replicas",
    )


@attrs.frozen
class HttpSettings:
    host: str = _knob(
        "127.0.0.1",
        Text("an address or host name of this machine", 255),
        "address to listen at",
        "this machine only; with 0.0.0.0 give keys as well (--api-key-file)",
    )
    port: int = _knob(
        8000, Count(0, 65_535), "port to listen at; 0 takes a free one", "what most clients' examples use"
    )
    api_key_file: Path | None = _knob(  # noqa: RUF009
        None,
        Pathname("a file with lines KEY TENANT [admin] [limit=N]"),
        "file with the keys that clients must show, lines KEY TENANT [admin] [limit=N]; read again when it changes",
        "without it everybody who reaches the port is served, as one tenant",
    )
    requests: int = _knob(
        1024,
        Count(1, 65_536),
        "most requests open at a time, choices counted; more are refused with 429",
        "each keeps its text and tokens in memory, some 100 KB when long",
    )
    body_size: int = _knob(
        32 << 20,
        Size(1 << 10),
        "largest request body",
        "a million tokens as JSON numbers take 8 MiB, as text about 4",
    )


@attrs.frozen
class SupervisionSettings:
    run_folder: Path | None = _knob(  # noqa: RUF009
        None,
        Pathname("a folder that may be written, with a path of at most 70 bytes"),
        "folder for the sockets between processes",
        "without it, $XDG_RUNTIME_DIR or the system's temporary folder",
    )
    drain_seconds: float = _knob(
        30.0,
        Seconds(0, 3600),
        "how long running requests may go on after TERM or Ctrl+C",
        "what orchestrators commonly allow before they kill",
    )
    silence_seconds: int = _knob(
        10,
        Count(3, 3600),
        "a process that gives no sign of life for so long is killed and started again",
        "a sign is given each second; a loaded machine delays it by a few",
    )
    stall_seconds: int = _knob(
        30,
        Count(5, 3600),
        "a replica with work that completes no step for so long is killed and started again",
        "the longest step on a slow CPU takes a few seconds",
    )
    restarts: int = _knob(
        5,
        Count(0, 1000),
        "how often in a row a process is started again before the server gives up",
        "with the pauses below about 30 s, in which passing faults pass",
    )
    restart_pause_seconds: float = _knob(
        0.5,
        Seconds(0.01, 60),
        "pause before the first restart; it doubles each time",
        "shorter than clients' own retries",
    )
    restart_pause_max_seconds: float = _knob(
        10.0, Seconds(0.01, 600), "longest pause before a restart", "an operator who mends something waits no longer"
    )
    healthy_seconds: float = _knob(
        30.0,
        Seconds(1, 3600),
        "after so long in service the count of restarts begins anew, as after a completed step",
        "longer than what fails at start",
    )


@attrs.frozen
class LogSettings:
    log_level: str = _knob(
        "info",
        one_of("debug", "info", "warning", "error"),
        "least grave log lines that are written",
        "starts and faults",
    )
    log_format: str = _knob(
        "lines", one_of("lines", "json"), "log lines for people, or one JSON object a line", "read by people at first"
    )


@attrs.frozen
class Settings:
    model: ModelSettings = attrs.field(factory=ModelSettings)
    pool: PoolSettings = attrs.field(factory=PoolSettings)
    batch: BatchSettings = attrs.field(factory=BatchSettings)
    routing: RoutingSettings = attrs.field(factory=RoutingSettings)
    http: HttpSettings = attrs.field(factory=HttpSettings)
    supervision: SupervisionSettings = attrs.field(factory=SupervisionSettings)
    log: LogSettings = attrs.field(factory=LogSettings)


@attrs.frozen
class Contradiction:
    knobs: tuple[str, ...]
    what: str


def knobs() -> tuple[Knob, ...]:
    """All of them, in the order of the tree."""
    found = []
    for section in attrs.fields(Settings):
        assert section.type is not None
        for field in attrs.fields(section.type):
            told = field.metadata[_About]
            found.append(Knob(section.name, field.name, told.kind, field.default, told.about, told.reason))
    return tuple(found)


def settings_of(values: dict[str, Any]) -> Settings:
    """A tree with `values` by knob name; each has been read by its kind."""
    sections = {}
    for section in attrs.fields(Settings):
        assert section.type is not None
        names = [field.name for field in attrs.fields(section.type) if field.name in values]
        sections[section.name] = section.type(**{name: values[name] for name in names})
    return Settings(**sections)


def contradiction(settings: Settings) -> Contradiction | None:
    """The first pair of settings that cannot both hold. Values are each allowed by themselves."""
    pool, batch, supervision = settings.pool, settings.batch, settings.supervision
    length = settings.model.max_model_len
    if pool.kv_blocks is not None and pool.kv_memory is not None:
        return Contradiction(("kv_blocks", "kv_memory"), "both give the size of the KV cache; give one of them")
    if length is not None and pool.kv_blocks is not None and length > pool.kv_blocks * pool.block_size:
        needed = -(-length // pool.block_size)
        what = f"a context of {length} tokens needs {needed} blocks of {pool.block_size} tokens"
        return Contradiction(("max_model_len", "kv_blocks", "block_size"), what)
    if batch.sequences > batch.step_tokens:
        what = "each running sequence takes one token of every step, so that these would leave no place for prompts"
        return Contradiction(("sequences", "step_tokens"), what)
    if length is not None and length > batch.waiting_tokens:
        what = "the longest allowed prompt could never wait, and would always be refused"
        return Contradiction(("max_model_len", "waiting_tokens"), what)
    if settings.routing.calibration is not None and settings.routing.placement == "off":
        return Contradiction(("placement", "calibration"), "nothing is priced by it where nothing is placed")
    if pool.transfer_pairs is not None and settings.routing.placement == "off":
        return Contradiction(("placement", "transfer_pairs"), "where nothing is placed it matters to nobody")
    if supervision.restart_pause_seconds > supervision.restart_pause_max_seconds:
        return Contradiction(
            ("restart_pause_seconds", "restart_pause_max_seconds"), "the first pause is longer than the longest"
        )
    return None
