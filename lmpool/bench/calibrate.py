"""`lmpool calibrate`: what steps and transfers take on this machine, with this model, as a file that a server reads.

First prefill and decode steps of one replica over many sizes, and the five rates fitted to them. Then, for every pair
of replicas that has a path and for 1 to 64 blocks, the time in which the path carries them between two real processes:
scattered blocks, source in no cache, beside nothing else. What arrives is compared byte by byte.

Then whole transfers of these sizes (prepare, copy, confirm, publish, finalize) between idle replicas of the model,
timed by control's own record: what they take beside the copy is the residual. Workers read by shm or cuda-ipc, so by
gloo and nccl it is null; so is the interference of running steps. A server assumes what is null, and corrects all by
what it observes. Measure on an idle machine, and again after any change of model, dtype, block size, replicas or
devices: a file that does not fit is refused.

With --check also, in turn with these, transfers of sizes between them, which the file must predict: the median within
25 %, and 90 to 98 % of times up to the P95, else the exit code is 1. Then the same beside running steps, which is only
told.

  lmpool calibrate --replicas 2 --output here.json
  lmpool calibrate Qwen/Qwen3-0.6B --check --json check.json
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

import attrs
from tqdm import tqdm

import lmpool
from lmpool.bench import flags
from lmpool.bench.calibrate_check import HELD_OUT, check, check_document, check_lines, verdict
from lmpool.bench.calibrate_transactions import Session, SessionOrder, measured_session, with_residuals
from lmpool.bench.table import table_lines
from lmpool.bench.transactions import SERVED, TransactionError
from lmpool.bench.transfer_pair import ON_CUDA, MeasuredPair, PairOrder, WrongBytes, absence, device_facts, path_pairs
from lmpool.core.ids import MILLISECOND, Rank
from lmpool.core.limits import RANKS_MAX
from lmpool.core.placement.price import INTERFERENCE, Pair, TransferPrices
from lmpool.core.placement.proposal import USUAL, chain_prefill_ns
from lmpool.core.prefix import ModelIdentity
from lmpool.core.rates import Rates
from lmpool.gpu.paths.port import CHUNK_BYTES, PathKind
from lmpool.io.calibration import (
    SCHEMA,
    CalibratedPair,
    Calibration,
    CopyPoint,
    StepPoint,
    calibration_text,
    transfer_profile,
)
from lmpool.io.errors import LMPoolError
from lmpool.io.supervision.computing import computing_environment
from lmpool.io.supervision.machine import usual_cache_folder
from lmpool.io.topology import RankPair, TopologyError, cuda_pairs, listed_pairs, run_smi

STEPS = "lmpool.bench.calibrate_steps"
OUTPUT = Path("lmpool-calibration.json")
KV_BLOCKS_MIN = 16
BLOCKS = (1, 2, 4, 8, 16, 32, 64)
COLUMNS = ("pair", "path", "blocks", "MiB", "copy ms", "p95 ms", "price ms", "p95 ms", "prefill ms", "pays")


class CalibrateError(Exception):
    """One line: why there is no calibration."""


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 if nothing could be measured or a check is not met, 2 for wrong usage."""
    given = _parser().parse_args(arguments)
    wrong = _fault(given)
    if wrong is not None:
        print(f"lmpool calibrate: {wrong}", file=sys.stderr)
        return flags.USAGE_CODE
    try:
        calibration, session = calibrate(given)
        _write(given.output, calibration_text(calibration))
        print("\n".join(report_lines(calibration)))
        print(f"written to {given.output}")
        return _report_check(given, calibration, session) if given.check else 0
    except (CalibrateError, TopologyError, TransactionError, WrongBytes, LMPoolError) as error:
        print(f"lmpool calibrate: {error}", file=sys.stderr)
        return 1


def _fault(given: argparse.Namespace) -> str | None:
    """What of the flags cannot be: steps take a while, and come first."""
    if not 2 <= given.replicas <= RANKS_MAX:
        return f"--replicas: a pair takes two, and a server has at most {RANKS_MAX}"
    if given.kv_blocks is not None and given.kv_blocks < KV_BLOCKS_MIN:
        return f"--kv-blocks: below {KV_BLOCKS_MIN} too few steps fit for five rates"
    if given.json is not None and not given.check:
        return "--json is for the figures of --check"
    if given.path in ON_CUDA:
        reason = absence(given.path, device_facts())
        if reason:
            return f"--path {given.path}: {reason}"
    try:
        if given.pairs is not None:
            listed_pairs(given.pairs, given.replicas)
        elif given.path in ON_CUDA:
            cuda_pairs(given.replicas, os.environ, run_smi)
    except TopologyError as error:
        return str(error)
    return None


def _report_check(given: argparse.Namespace, calibration: Calibration, session: Session) -> int:
    """Raises CalibrateError."""
    idle, loaded = check(calibration, session.idle), check(calibration, session.loaded)
    print("\n".join([*check_lines("idle", idle), *check_lines("beside steps", loaded), verdict(idle)]))
    if given.json is not None:
        document = {"idle": check_document(idle), "loaded": check_document(loaded)}
        _write(given.json, json.dumps(document, indent=1).encode() + b"\n")
    return 0 if idle.is_within else 1


def _parser() -> argparse.ArgumentParser:
    parser = flags.Parser(
        "lmpool calibrate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="as of lmpool serve (default: the bundled one)")
    parser.add_argument(
        "--replicas", type=flags.count, default=2, metavar="N", help="all their pairs (default %(default)s)"
    )
    parser.add_argument("--device", default="auto", help="as of lmpool serve (default %(default)s)")
    parser.add_argument("--dtype", default="auto", help="as of lmpool serve (default %(default)s)")
    parser.add_argument("--threads", type=flags.count, metavar="N", help="of each replica (default: cores / replicas)")
    parser.add_argument(
        "--block-size", type=flags.block_size, default=16, metavar="TOKENS", help="(default %(default)s)"
    )
    parser.add_argument("--kv-blocks", type=flags.count, metavar="N", help="pool in which steps are measured")
    parser.add_argument(
        "--path", choices=[kind.value for kind in PathKind], help="(default: shm on CPU, cuda-ipc on CUDA)"
    )
    parser.add_argument(
        "--pairs", metavar="LIST", help="0-1 (both ways), 0>1; default: all on CPU, linked ones on CUDA"
    )
    parser.add_argument(
        "--rounds", type=flags.count, default=40, metavar="N", help="of each size (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--cache-folder", type=Path, metavar="FOLDER", help="as of lmpool serve")
    parser.add_argument("--check", action="store_true", help="predict transfers of other sizes, and measure them")
    parser.add_argument(
        "--json", type=flags.output, metavar="FILE", help="write the figures of the check there as well"
    )
    parser.add_argument("--output", type=flags.output, default=OUTPUT, metavar="FILE", help="(default %(default)s)")
    return parser


def calibrate(given: argparse.Namespace) -> tuple[Calibration, Session]:
    """Raises CalibrateError, TopologyError, TransactionError, WrongBytes and LMPoolError."""
    threads = given.threads or max(1, (os.cpu_count() or 1) // given.replicas)
    curve = measured_steps(given, threads)
    path = given.path or (PathKind.SHARED_MEMORY.value if curve["device"] == "cpu" else PathKind.CUDA_IPC.value)
    is_served = path in SERVED and curve["device"].startswith(SERVED[path]["device"])
    if given.check and not is_served:
        raise CalibrateError(f"workers on {curve['device']} do not transfer by {path}, so nothing can be checked")
    pairs, cold_bytes = measured_pairs(given, path, curve["shape"], threads)
    session = Session((), (), ())
    if is_served:
        session = _session(given, path, pairs, threads, cold_bytes)
        pairs = tuple(with_residuals(pair, session.calibrating, INTERFERENCE) for pair in pairs)
    calibration = Calibration(
        schema=SCHEMA,
        lmpool=lmpool.__version__,
        identity=ModelIdentity(**curve["identity"]),
        block_bytes=curve["block_bytes"],
        device=curve["device"],
        threads=threads,
        rates=Rates(**curve["rates"]),
        prefills=tuple(StepPoint(**step) for step in curve["prefills"]),
        decodes=tuple(StepPoint(**step) for step in curve["decodes"]),
        interference=None,
        pairs=pairs,
    )
    return calibration, session


def _session(
    given: argparse.Namespace, path: str, pairs: Sequence[CalibratedPair], threads: int, cold_bytes: int
) -> Session:
    """Raises TransactionError and LMPoolError."""
    order = SessionOrder(
        path=path,
        model=given.model,
        cache_folder=given.cache_folder,
        dtype=given.dtype,
        replicas=given.replicas,
        threads=threads,
        block_size=given.block_size,
        pairs=tuple((pair.source, pair.target) for pair in pairs),
        sizes=BLOCKS,
        held_out=HELD_OUT if given.check else (),
        rounds=given.rounds,
        seed=given.seed,
        cold_bytes=cold_bytes,
    )
    with tqdm(total=order.transfers, desc="transfers", unit="transfer") as bar:
        return measured_session(order, lambda _: _advance(bar))


def _advance(bar: "tqdm[Any]") -> None:
    bar.update()


def measured_steps(given: argparse.Namespace, threads: int) -> dict[str, Any]:
    """Of one replica, in a process of its own. Raises CalibrateError."""
    order = {
        "model": given.model,
        "cache": str((given.cache_folder or usual_cache_folder(os.environ)).absolute()),
        "model_folder": "",
        "device": given.device,
        "dtype": given.dtype,
        "threads": threads,
        "block_size": given.block_size,
        "kv_blocks": given.kv_blocks,
    }
    command = [sys.executable, "-m", STEPS, json.dumps(order)]
    environment = computing_environment(os.environ, threads)
    with (
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process,
        tqdm(desc="steps", unit="step") as bar,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            answer = json.loads(line)
            match answer:
                case {"told": told}:
                    bar.set_postfix_str(told)
                case {"done": done, "of": total}:
                    bar.total = total
                    bar.update(done - bar.n)
                case {"curve": curve}:
                    return dict(curve)
                case _:
                    raise CalibrateError(answer["failed"])
        raise CalibrateError(f"the process that measures steps has ended with code {process.wait()}")


def measured_pairs(
    given: argparse.Namespace, path: str, shape: dict[str, Any], threads: int
) -> tuple[tuple[CalibratedPair, ...], int]:
    """And how many bytes were read to have a cold source. Raises TopologyError and WrongBytes."""
    devices = int(device_facts()["cuda_devices"])
    pairs = path_pairs(path, given.pairs, given.replicas)
    found: list[CalibratedPair] = []
    cold_bytes = 0
    with tqdm(total=len(pairs) * len(BLOCKS) * given.rounds, desc="copies", unit="copy") as bar:
        for pair in pairs:
            points: list[CopyPoint] = []
            with MeasuredPair(_pair_order(path, shape, threads, pair, devices)) as measured:
                cold_bytes = measured.arms.cold_bytes
                for blocks in BLOCKS:
                    bar.set_postfix_str(f"{path} {pair[0]}>{pair[1]}, {blocks} blocks")
                    points.append(_point(measured, blocks, given, pair, bar))
            found.append(CalibratedPair(*pair, path, tuple(points)))
    return tuple(found), cold_bytes


def _pair_order(path: str, shape: dict[str, Any], threads: int, pair: RankPair, devices: int) -> PairOrder:
    source, target = (f"cuda:{rank % max(devices, 1)}" if path in ON_CUDA else "cpu" for rank in pair)
    pool = shape | {"blocks": _held()}
    return PairOrder(
        path=path,
        source_pool=pool | {"device": source},
        target_pool=pool | {"device": target},
        threads=threads,
        chunk_bytes=CHUNK_BYTES[PathKind(path)],
        is_summed=False,
        cold_bytes=None,
    )


def _held() -> int:
    """Blocks of a pool: four times the largest transfer, so that scattered blocks are scattered."""
    return 4 * BLOCKS[-1]


def _point(
    measured: MeasuredPair, blocks: int, given: argparse.Namespace, pair: RankPair, bar: "tqdm[Any]"
) -> CopyPoint:
    chance = random.Random(f"{given.seed} {pair} {blocks}")
    seconds: list[float] = []
    for number in range(given.rounds + 1):  # the first warms up and is not counted
        source, target = (tuple(chance.sample(range(_held()), blocks)) for _ in range(2))
        took = measured.path_s(source, target)
        if number:
            seconds.append(took)
            bar.update()
    return copy_point(blocks, seconds)


def copy_point(blocks: int, seconds: Sequence[float]) -> CopyPoint:
    ordered = sorted(seconds)
    p95 = ordered[ceil(0.95 * len(ordered)) - 1]
    return CopyPoint(blocks, median(ordered), max(p95, median(ordered)), None, None)


def _write(path: Path, content: bytes) -> None:
    """Raises CalibrateError."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise CalibrateError(f"cannot write {path}: {error.strerror}") from error


def report_lines(calibration: Calibration) -> list[str]:
    """Rates, then each pair and size with its price, beside what it takes to compute as many blocks from nothing."""
    rates, size = calibration.rates, calibration.identity.block_size
    prices = TransferPrices(transfer_profile(calibration))
    rows: list[list[str]] = []
    for pair in calibration.pairs:
        for point in pair.points:
            price = prices.price(Pair(Rank(pair.source), Rank(pair.target)), point.blocks)
            prefill = chain_prefill_ns(rates, size, 0, point.blocks)
            rows.append(
                [
                    f"{pair.source}>{pair.target}",
                    pair.path,
                    str(point.blocks),
                    f"{point.blocks * calibration.block_bytes / (1 << 20):.2f}",
                    f"{point.copy_p50_s * 1e3:.3f}",
                    f"{point.copy_p95_s * 1e3:.3f}",
                    f"{price.median_ns / MILLISECOND:.2f}",
                    f"{price.p95_ns / MILLISECOND:.2f}",
                    f"{prefill / MILLISECOND:.2f}",
                    "yes" if prefill > price.p95_ns * USUAL.safety_ratio else "no",
                ]
            )
    names = ", ".join(f"{name} {value:.4g}" for name, value in attrs.asdict(rates).items())
    return [
        f"rates in ns: {names}",
        *table_lines(COLUMNS, rows),
        "price: of a whole transfer, which a server corrects by what it sees; pays: prefill > 1.5 x P95",
    ]
