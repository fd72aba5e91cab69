"""`lmpool bench transfer`: how long KV blocks take from one replica's pool into another's, by every path there is here.

Two real processes a pair: the target's copies are timed from the order to the last byte, with caches emptied before,
and alternate with plain copies inside the target's process: of the same scattered blocks between two pools, and of as
many contiguous bytes. Both sides have the same number of threads. What arrives is compared byte by byte.

shm and gloo are measured on CPU pools, cuda-ipc and nccl where two CUDA devices are linked. cuda-ipc and nccl were
written from documentation and have not been run on hardware yet: no figure is claimed for them.

Then whole transfers (prepare, copy, confirm, publish, finalize) between idle replicas of a model with random weights
and blocks of the same form, in both directions, timed by control's own record. Workers read each other's pools by shm
or cuda-ipc: by gloo and nccl there is no whole transfer, and its figures are null.

With --streams what transfers cost whoever decodes: N answers of MODEL on every replica, and the gaps between their
pieces in windows that alternate, undisturbed and beside transfers of --blocks (default 16), one after the other.

  lmpool bench transfer --json paths.json --plot paths.svg
  lmpool bench transfer --path shm --blocks 1 8 64 --rounds 40 --checksum
  lmpool bench transfer --streams 4 --blocks 64
"""

import argparse
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from statistics import median

import attrs
from tqdm import tqdm

from lmpool.bench import flags
from lmpool.bench.random_llama import LlamaForm
from lmpool.bench.transactions import SERVED, Times, TransactionError
from lmpool.bench.transfer_figures import Curve, PlotError, Point, check_plot, json_text, plot, report_lines
from lmpool.bench.transfer_pair import ON_CUDA, MeasuredPair, PairOrder, WrongBytes, absence, device_facts, path_pairs
from lmpool.bench.transfer_streams import StreamOrder, measure_streams, stream_json, stream_lines
from lmpool.bench.transfer_whole import WholeOrder, whole_times
from lmpool.gpu.memory import host_memory, size_text
from lmpool.gpu.paths.port import CHUNK_BYTES, PathKind
from lmpool.io.errors import LMPoolError
from lmpool.io.topology import RankPair, TopologyError, listed_pairs

PATHS = tuple(kind.value for kind in PathKind)
BLOCKS_USUAL = 64
STREAM_BLOCKS = 16
STREAMS = 4
MIB = 1 << 20
QUICK = {"blocks": [1, 8, 64], "rounds": 3, "windows": 2}


POOLS = 4
"""In memory at once, or as much: of both ends, and what plain copies inside one process are between."""


class UsageError(Exception):
    """One line: what of the flags cannot be, and what can."""


@attrs.define
class Samples:
    """Seconds, one a round."""

    scattered: list[float] = attrs.Factory(list)
    runs: list[float] = attrs.Factory(list)
    indexed: dict[str, list[float]] = attrs.Factory(dict)
    flat: dict[str, list[float]] = attrs.Factory(dict)


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 if something has arrived with other bytes, or nothing could be measured; 2 for wrong usage."""
    given = flags.profiled(_parser(), QUICK, arguments)
    given.path = list(dict.fromkeys(given.path))
    given.blocks = given.blocks and sorted(dict.fromkeys(given.blocks))
    try:
        _check(given)
        if given.streams:
            return _streams(given)
        curve = measure(given)
    except (UsageError, PlotError, TopologyError, TransactionError, WrongBytes, LMPoolError) as error:
        print(f"lmpool bench transfer: {error}", file=sys.stderr)
        return flags.USAGE_CODE if isinstance(error, UsageError | PlotError | TopologyError) else 1
    if given.plot is not None:
        plot(curve, given.plot)
    _tell(given.json, json_text(curve), report_lines(curve))
    return 0 if curve.points else 1


def _check(given: argparse.Namespace) -> None:
    """Raises UsageError, PlotError, TopologyError."""
    if given.plot is not None:
        check_plot(given.plot)
    if given.replicas < 2:
        raise UsageError("--replicas: a pair takes two")
    if given.pairs is not None:
        listed_pairs(given.pairs, given.replicas)
    if given.streams:
        if _served(given) is None:
            raise UsageError(
                f"--streams: workers read each other's blocks by {' or '.join(SERVED)}, as far as it is here"
            )
        return
    if given.model is not None:
        raise UsageError("--model is for --streams; without it blocks have the form that --layers and so on say")
    most = max(given.blocks or sizes(given.largest * MIB, block_bytes(given)))
    needed = POOLS * _pool_blocks(most) * block_bytes(given)
    free = host_memory().free
    if needed > free:
        raise UsageError(
            f"{most} blocks take pools and plain copies of {size_text(needed)} together, and {size_text(free)} are "
            "free: measure fewer, or smaller ones"
        )


def _streams(given: argparse.Namespace) -> int:
    """Raises TransactionError, LMPoolError, TopologyError."""
    path = _served(given)
    assert path is not None
    figures = measure_streams(
        StreamOrder(
            path=path,
            model=given.model,
            replicas=given.replicas,
            threads=given.threads,
            dtype=given.dtype,
            block_size=given.block_size,
            each=given.streams,
            blocks=max(given.blocks or [STREAM_BLOCKS]),
            pairs=path_pairs(path, given.pairs, given.replicas),
            windows=given.windows,
            window_s=given.window_s,
            seed=given.seed,
        )
    )
    _tell(given.json, stream_json(figures), stream_lines(figures))
    return 0


def _tell(file: str | None, document: str, lines: Sequence[str]) -> None:
    if file == "-":
        print(document)
        return
    if file:
        Path(file).write_text(document + "\n")
    print("\n".join(lines))


def _parser() -> argparse.ArgumentParser:
    parser = flags.Parser(
        "lmpool bench transfer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--path", nargs="+", choices=PATHS, default=list(PATHS), help="(default: all that are here)")
    parser.add_argument(
        "--replicas", type=flags.count, default=2, metavar="N", help="all their pairs (default %(default)s)"
    )
    parser.add_argument(
        "--pairs", metavar="LIST", help="0-1 (both ways), 0>1; default: all on CPU, linked ones on CUDA"
    )
    parser.add_argument("--rounds", type=flags.count, default=9, metavar="N", help="(default %(default)s)")
    parser.add_argument(
        "--blocks", nargs="+", type=flags.count, metavar="N", help="(default: 1 to 64, and on to --largest)"
    )
    parser.add_argument("--largest", type=flags.count, default=64, metavar="MIB", help="(default %(default)s)")
    parser.add_argument(
        "--threads",
        type=flags.count,
        default=1,
        metavar="N",
        help="of plain copies; paths copy on one (default %(default)s)",
    )
    parser.add_argument("--chunk-bytes", type=flags.count, metavar="N", help="(default: the path's own)")
    parser.add_argument("--checksum", action="store_true", help="computed on the way, and in the time")
    parser.add_argument(
        "--cold", type=flags.number, metavar="MIB", help="read before each copy (default: past the largest cache)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    shape = parser.add_argument_group("blocks, by default those of SmolLM2-135M")
    shape.add_argument("--layers", type=flags.count, default=30, metavar="N")
    shape.add_argument("--block-size", type=flags.block_size, default=16, metavar="TOKENS")
    shape.add_argument("--kv-heads", type=flags.count, default=3, metavar="N")
    shape.add_argument("--head-dim", type=flags.count, default=64, metavar="N")
    shape.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    _add_streams(parser.add_argument_group("streams, instead of all that"))
    parser.add_argument(
        "--json",
        type=flags.output_or_dash,
        metavar="FILE",
        help="write the figures there as well; -: only them, to the output",
    )
    parser.add_argument("--plot", type=flags.output, metavar="FILE", help="draw them (.png, .svg, .pdf)")
    return parser


def _add_streams(streams: argparse._ArgumentGroup) -> None:
    streams.add_argument(
        "--streams",
        type=flags.count,
        nargs="?",
        default=0,
        const=STREAMS,
        metavar="N",
        help=f"decode N on every replica ({STREAMS} if not said)",
    )
    streams.add_argument("--model", metavar="MODEL", help="as of lmpool serve (default: the bundled one)")
    streams.add_argument(
        "--windows", type=flags.count, default=6, metavar="N", help="of each kind (default %(default)s)"
    )
    streams.add_argument("--window-s", type=flags.factor, default=3.0, metavar="S", help="(default %(default)s)")


def block_bytes(given: argparse.Namespace) -> int:
    item = 4 if given.dtype == "float32" else 2
    return int(2 * given.layers * given.block_size * given.kv_heads * given.head_dim * item)


def sizes(largest_bytes: int, each: int) -> list[int]:
    """Powers of two to 64 blocks, and on to what `largest_bytes` needs."""
    needed = max(BLOCKS_USUAL, ceil(largest_bytes / each))
    return [*(1 << power for power in range(needed.bit_length()) if 1 << power < needed), needed]


def measure(given: argparse.Namespace) -> Curve:
    """Raises TopologyError and WrongBytes."""
    facts = device_facts()
    points: list[Point] = []
    left_out: dict[str, str] = {}
    cold_bytes = 0
    counts = given.blocks or sizes(given.largest * MIB, block_bytes(given))
    for path in given.path:
        reason = absence(path, facts)
        if reason:
            left_out[path] = reason
            continue
        for pair in path_pairs(path, given.pairs, given.replicas):
            with MeasuredPair(_pair_order(given, path, pair, max(counts), facts["cuda_devices"])) as measured:
                cold_bytes = measured.arms.cold_bytes
                found = _points(given, path, pair, counts, measured)
                points += tqdm(found, f"{path} {pair[0]}>{pair[1]}", len(counts), unit="size")
    for path in given.path:
        if path in SERVED and path not in left_out:
            whole = whole_times(_whole_order(given, path, counts, cold_bytes))
            points = [_with_whole(each, path, whole) for each in points]
    return Curve(
        points=points,
        left_out=left_out,
        layers=given.layers,
        block_size=given.block_size,
        kv_heads=given.kv_heads,
        head_dim=given.head_dim,
        dtype=given.dtype,
        threads=given.threads,
        rounds=given.rounds,
        chunk_bytes={path: given.chunk_bytes or CHUNK_BYTES[PathKind(path)] for path in given.path},
        is_summed=given.checksum,
        cold_bytes=cold_bytes,
        seed=given.seed,
    )


def _served(given: argparse.Namespace) -> str | None:
    """The first that is here. Only for a path of CUDA torch is asked, which takes seconds."""
    served = (path for path in given.path if path in SERVED)
    return next((path for path in served if path not in ON_CUDA or absence(path, device_facts()) is None), None)


def _whole_order(given: argparse.Namespace, path: str, counts: Sequence[int], cold_bytes: int) -> WholeOrder:
    return WholeOrder(
        path=path,
        form=LlamaForm(given.layers, given.kv_heads, given.head_dim),
        dtype=given.dtype,
        block_size=given.block_size,
        replicas=given.replicas,
        threads=given.threads,
        pairs=path_pairs(path, given.pairs, given.replicas),
        sizes=tuple(counts),
        rounds=given.rounds,
        seed=given.seed,
        cold_bytes=cold_bytes,
        is_summed=given.checksum,
    )


def _with_whole(each: Point, path: str, whole: Mapping[tuple[RankPair, int], Times]) -> Point:
    if each.path != path:
        return each
    found = whole[each.pair, each.blocks]
    return attrs.evolve(
        each,
        transaction_p50_s=found.p50_s,
        transaction_p95_s=found.p95_s,
        transaction_adds_p50_s=found.adds_p50_s,
    )


def _pair_order(given: argparse.Namespace, path: str, pair: RankPair, largest: int, devices: int) -> PairOrder:
    pool = {
        "layers": given.layers,
        "block_size": given.block_size,
        "kv_heads": given.kv_heads,
        "head_dim": given.head_dim,
        "dtype": given.dtype,
        "blocks": _pool_blocks(largest),
    }
    source, target = (f"cuda:{rank % devices}" if path in ON_CUDA else "cpu" for rank in pair)
    return PairOrder(
        path=path,
        source_pool=pool | {"device": source},
        target_pool=pool | {"device": target},
        threads=given.threads,
        chunk_bytes=given.chunk_bytes or CHUNK_BYTES[PathKind(path)],
        is_summed=given.checksum,
        cold_bytes=None if given.cold is None else given.cold * MIB,
    )


def _pool_blocks(largest: int) -> int:
    """Twice as many, so that scattered blocks are scattered."""
    return 2 * largest + 16


def _points(
    given: argparse.Namespace, path: str, pair: RankPair, counts: Sequence[int], measured: MeasuredPair
) -> Iterator[Point]:
    for count in counts:
        samples = Samples()
        chance = random.Random(f"{given.seed} {pair} {count}")
        for number in range(given.rounds + 1):  # the first warms up and is not counted
            round_samples = samples if number else Samples()
            _round(measured, count, _pool_blocks(max(counts)), chance, number, round_samples)
        yield point(path, pair, count, count * block_bytes(given), samples)


def _round(measured: MeasuredPair, count: int, held: int, chance: random.Random, number: int, samples: Samples) -> None:
    """Each arm once, beginning with another one each time, and on blocks of its own, which no other has just read."""
    arms: list[tuple[str, str]] = [("scattered", ""), ("runs", "")]
    arms += [("indexed", arm) for arm in measured.arms.indexed] + [("flat", arm) for arm in measured.arms.flat]
    turn = number % len(arms)
    for kind, arm in [*arms[turn:], *arms[:turn]]:
        source, target = (tuple(chance.sample(range(held), count)) for _ in range(2))
        first, second = (chance.randrange(held - count + 1) for _ in range(2))
        match kind:
            case "scattered":
                samples.scattered.append(measured.path_s(source, target))
            case "runs":
                run = tuple(range(first, first + count)), tuple(range(second, second + count))
                samples.runs.append(measured.path_s(*run))
            case "indexed":
                samples.indexed.setdefault(arm, []).append(measured.indexed_s(arm, source, target))
            case _:
                samples.flat.setdefault(arm, []).append(measured.flat_s(arm, first, second, count))


def point(path: str, pair: RankPair, blocks: int, size_bytes: int, samples: Samples) -> Point:
    p50, runs_p50 = median(samples.scattered), median(samples.runs)
    indexed = {arm: median(seconds) for arm, seconds in samples.indexed.items()}
    flat = {arm: median(seconds) for arm, seconds in samples.flat.items()}
    indexed_copy, flat_copy = min(indexed, key=indexed.__getitem__), min(flat, key=flat.__getitem__)
    return Point(
        path=path,
        pair=pair,
        blocks=blocks,
        bytes=size_bytes,
        p50_s=p50,
        p95_s=sorted(samples.scattered)[ceil(0.95 * len(samples.scattered)) - 1],
        indexed_copy_share=indexed[indexed_copy] / p50,
        flat_copy_share=flat[flat_copy] / runs_p50,
        transaction_p50_s=None,
        transaction_p95_s=None,
        transaction_adds_p50_s=None,
        runs_p50_s=runs_p50,
        scattered_flat_copy_share=flat[flat_copy] / p50,
        indexed_copy=indexed_copy,
        flat_copy=flat_copy,
    )
