"""`tools/chaos`: real processes under a mixed load, killed and stopped at random, every answer checked.

Exits 0 if no answer was wrong, none was lost, nothing is left behind and no process ended of its own accord.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
from tqdm import tqdm

from lmpool.bench.byte_model import write_byte_folder
from lmpool.bench.chaos.client import ChaosClient
from lmpool.bench.chaos.leaks import (
    Leaks,
    grown,
    held,
    left_folders,
    left_processes,
    orphans,
    quiet_descriptors,
    shared_segments,
    total,
)
from lmpool.bench.chaos.lesson import Known, Lesson
from lmpool.bench.chaos.load import Load
from lmpool.bench.chaos.plan import draw_plan
from lmpool.bench.chaos.question import draw_questions, nonsense
from lmpool.bench.chaos.report import Report, report_document, report_lines
from lmpool.bench.chaos.server import ChaosServer, ServerError
from lmpool.bench.chaos.soak import Sample, keep_sampling, trends
from lmpool.bench.chaos.strikes import Striker
from lmpool.bench.chaos.tally import Tally

STEP_NS = 5_000_000
QUESTIONS = 120
REAL_QUESTIONS = 32
"""Of a real model, which takes seconds for what one of integers does in no time."""
FLAGS = (
    *("--silence-seconds", "6", "--healthy-seconds", "3"),
    *("--requests", "72", "--sequences", "16", "--waiting-requests", "16"),
)
"""What is killed every few seconds and serves in between is no process that cannot work."""
BYTE_MODEL_FLAGS = ("--kv-blocks", "192", "--step-tokens", "256")
"""Small enough for chunks, preemption, reclaiming and refusals."""
REAL_MODEL_FLAGS = ("--dtype", "float32")
BUNDLED = "bundled"
RECOVERY_S = 60.0
BAR = "{n:.0f} of {total:.0f} s: {postfix}"
LINE_S = {True: 1.0, False: 15.0}
"""Between two lines of progress, on a terminal and elsewhere."""


def main(arguments: Sequence[str]) -> int:
    given = _parser().parse_args(arguments)
    try:
        report = asyncio.run(_chaos(given))
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1
    document = json.dumps(report_document(report), indent=1)
    if given.json is not None and str(given.json) != "-":
        given.json.write_text(document + "\n")
    print("\n".join(report_lines(report)), file=sys.stderr if str(given.json) == "-" else sys.stdout)
    if str(given.json) == "-":
        print(document)
    return 1 if report.faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("tools/chaos", description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=2.0, metavar="M", help="how long the load lasts")
    parser.add_argument("--replicas", type=int, default=3, metavar="N")
    parser.add_argument("--clients", type=int, default=16, metavar="N", help="requests at a time, besides bursts")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of requests and strikes")
    parser.add_argument("--kills", type=int, default=1 << 30, metavar="N", help="most strikes; 0: a soak")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="a real one, in float32 (bundled: the one that is served when none is named): greedy answers may differ "
        "only where two tokens are as good as equal, drawn ones are checked in form; without it one of exact integers",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well; - is the output")
    return parser


async def _chaos(given: argparse.Namespace) -> Report:
    with tempfile.TemporaryDirectory(prefix="lmpool-chaos-") as temporary:
        folder = Path(temporary)
        flags = [*_model_flags(given.model, folder), "--replicas", str(given.replicas), *FLAGS]
        segments = shared_segments()
        server = ChaosServer(folder, flags)
        try:
            await server.start()
            report = await _measure(server, given)
        finally:
            server.close()
        if report.faults:
            kept = Path(tempfile.gettempdir()) / f"lmpool-chaos-{server.process.pid}.log"
            kept.write_text(server.log())
            print(f"the log of the server is in {kept}", file=sys.stderr)
        left = len(orphans(shared_segments() - segments))
        return attrs.evolve(report, leaks=attrs.evolve(report.leaks, segments=report.leaks.segments + left))


def _model_flags(model: str | None, folder: Path) -> Sequence[str]:
    if model is None:
        return str(write_byte_folder(folder / "byte-model", {"step_ns": STEP_NS})), *BYTE_MODEL_FLAGS
    return *(() if model == BUNDLED else (model,)), *REAL_MODEL_FLAGS


async def _measure(server: ChaosServer, given: argparse.Namespace) -> Report:
    """The whole story of a server that is up, to its end."""
    watching = asyncio.create_task(server.watch())
    model = await _model(server)
    learner = ChaosClient(server, model, is_exact=given.model is None)
    known = await _learn(server, learner, given)
    await learner.close()
    before = await quiet_descriptors(server, None)
    client = ChaosClient(server, model, is_exact=given.model is None)
    tally, striker, samples = Tally(), Striker(server, client, given.replicas), list[Sample]()
    began = time.monotonic()
    ends = began + given.minutes * 60
    sampling = asyncio.create_task(keep_sampling(server, began, max(1.0, given.minutes * 60 / 120), samples))
    showing = asyncio.create_task(_show(tally, striker, given.minutes * 60))
    plan = draw_plan(given.minutes * 60, given.seed, given.kills)
    load = Load(server, client, known, given.seed, tally)
    await asyncio.gather(load.run(given.clients, ends), striker.run(plan, began, ends))
    seconds = time.monotonic() - began
    await client.close()
    has_recovered = await _recovered(server, given.replicas)
    sampling.cancel()
    showing.cancel()
    blocks, sequences = await held(server)
    after = await quiet_descriptors(server, before)
    resumed = total(await server.metrics(), "lmpool_resumed_prompts_total")
    watching.cancel()
    await asyncio.gather(watching, sampling, showing, return_exceptions=True)
    code = await server.end()
    leaks = Leaks(
        blocks=blocks,
        sequences=sequences,
        segments=after.segments,
        descriptors=grown(after, before),
        processes=len(left_processes(server)),
        folders=left_folders(server),
    )
    return Report(
        seconds=seconds,
        seed=given.seed,
        tally=tally,
        strikes=striker.done,
        skipped=striker.skipped,
        kills=striker.processes,
        crashes=[f"{death.name} after {death.at - began:.1f} s" for death in server.deaths if not death.is_expected],
        has_recovered=has_recovered,
        leaks=leaks,
        exit_code=code,
        resumed=resumed,
        samples=samples,
        trends=[] if plan else trends(samples),
    )


async def _learn(server: ChaosServer, client: ChaosClient, given: argparse.Namespace) -> list[Known]:
    """Raises ServerError."""
    with_chat = given.model is None or "chat on" in server.log()
    is_real = given.model is not None
    count = REAL_QUESTIONS if is_real else QUESTIONS
    drawn = draw_questions(count, given.seed, with_chat=with_chat, with_rivals=is_real)
    questions = (*drawn, *nonsense(count))
    lesson = Lesson(client, server.url, is_integer=not is_real)
    with tqdm(total=len(questions), desc="learning the answers", mininterval=_line_s()) as progress:
        return await lesson.learn(questions, progress)


async def _model(server: ChaosServer) -> str:
    """Raises ServerError."""
    models = await server.document("/v1/models")
    if models is None:
        raise ServerError(f"the server does not name its model\n{server.last_lines()}")
    return str(models["data"][0]["id"])


async def _recovered(server: ChaosServer, replicas: int) -> bool:
    """Waits until every replica serves again."""
    until = time.monotonic() + RECOVERY_S
    while time.monotonic() < until and server.is_running:
        if len(await server.live_ranks()) == replicas:
            return True
        await asyncio.sleep(0.2)
    return False


async def _show(tally: Tally, striker: Striker, seconds: float) -> None:
    """A line of progress, until cancelled."""
    began = time.monotonic()
    with tqdm(total=seconds, bar_format=BAR, mininterval=_line_s()) as bar:
        while True:
            bar.set_postfix_str(f"{tally.line()}, {striker.done.total()} strikes", refresh=False)
            bar.update(min(time.monotonic() - began, seconds) - bar.n)
            await asyncio.sleep(1)


def _line_s() -> float:
    return LINE_S[sys.stderr.isatty()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
