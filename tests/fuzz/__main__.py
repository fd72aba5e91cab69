"""`tools/fuzz`: long hunts, with what was seen as one JSON object at the end."""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import attrs

from tests.fuzz.burst import burst
from tests.fuzz.http import hunt
from tests.fuzz.rig import Rig, rig
from tests.fuzz.wire import Figures, fuzz, short_folder
from tests.model_folder import write_tiny_folder

Mode = Callable[[Rig], Coroutine[Any, Any, Any]]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/fuzz", description="Hostile input against real processes.")
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--wire", type=int, metavar="INPUTS", help="frames and garbage on every socket")
    kind.add_argument("--http", type=int, metavar="REQUESTS", help="requests made from openapi.json, for each endpoint")
    kind.add_argument("--burst", type=int, metavar="REQUESTS", help="so many at the same moment")
    parser.add_argument("--seed", type=int, default=1, help="of --wire and --http")
    options = parser.parse_args(words)
    if options.wire is not None:

        async def run(made: Rig) -> Any:
            figures = Figures()
            await fuzz(made, options.seed, options.wire, figures)
            return figures

    elif options.http is not None:

        async def run(made: Rig) -> Any:
            return await hunt(made, options.seed, options.http)

    else:

        async def run(made: Rig) -> Any:
            return await burst(made, options.burst)

    began = time.monotonic()
    figures = attrs.asdict(asyncio.run(_with_rig(run)))
    if stream_s := sorted(figures.pop("stream_s", ())):
        figures |= {"stream_s_p50": stream_s[len(stream_s) // 2], "stream_s_max": stream_s[-1]}
    print(json.dumps({"seconds": round(time.monotonic() - began, 1), **figures}))
    return 0


async def _with_rig(mode: Mode) -> Any:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        async with rig(short_folder(folder), write_tiny_folder(folder / "model"), None) as made:
            try:
                return await mode(made)
            except BaseException:
                print("\n".join(made.lines[-40:]), file=sys.stderr)
                raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
