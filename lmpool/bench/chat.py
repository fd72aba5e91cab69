"""`lmpool bench chat`: chats against any server that speaks the OpenAI API, peers included.

multi-round-chat is open loop (users come as Poisson) with rounds that follow answers; long-doc-qa is closed loop with a
bound in flight. Exit code 1: a run is not valid (errors, or this client could not keep up). specs/load.md has the
definitions of every figure.
"""

import argparse
import asyncio
import json
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs
import uvloop
from tqdm import tqdm

from lmpool.bench.flags import INTERRUPTED_CODE, USAGE_CODE, Parser, count, factor, factor_from_zero, output, scale
from lmpool.bench.load.chat_report import report_lines, written_log
from lmpool.bench.load.chat_run import LoadSettings, chat_report
from lmpool.bench.load.client import LoadError, Target
from lmpool.bench.load.counters import CacheCondition
from lmpool.bench.load.figures import Bounds
from lmpool.bench.load.http import Dialect
from lmpool.bench.load.run import Allowed, LoadReport
from lmpool.bench.load.schema import json_schema
from lmpool.io.pool_client import ClientError, fetch_document, operator_key
from lmpool.sim.trace import TraceError

WORKLOADS = ("multi-round-chat", "long-doc-qa", "long-doc-qa-tiled")


@attrs.frozen
class Profile:
    about: str
    scale: float
    pauses: float
    rate: float
    seconds: float
    documents: int


PROFILES = {
    "quick": Profile("a first look, on a processor within two minutes", 0.1, 0.2, 0.5, 20.0, 3),
    "full": Profile("for figures to be kept", 1.0, 1.0, 0.5, 120.0, 8),
}
EXAMPLES = """\
examples:
  lmpool bench chat --url http://127.0.0.1:8000
  lmpool bench chat --profile full --scale 0.25 --json chat.json --log requests.jsonl
  lmpool bench chat --workload multi-round-chat --rate 2 --seconds 60 --tokenizer ./model/tokenizer.json
  lmpool bench chat --url https://api.example.com --dialect openai --model some-model
"""


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 if a run is not valid, 2 for wrong usage or a server that cannot be asked."""
    given = _parser().parse_args(arguments)
    if given.schema:
        print(json.dumps(json_schema(LoadReport), indent=1))
        return 0
    try:
        target = _target(given)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            report, logs = runner.run(chat_report(target, [_settings(given, name) for name in given.workload], _Bar))
        if given.json is not None:
            given.json.write_text(json.dumps(attrs.asdict(report), indent=1) + "\n")
        if given.log is not None:
            given.log.write_text(written_log(report, logs))
    except (LoadError, ClientError, TraceError, OSError) as error:
        print(f"lmpool bench chat: {error}", file=sys.stderr)
        return USAGE_CODE
    except KeyboardInterrupt:
        print("lmpool bench chat: interrupted", file=sys.stderr)
        return INTERRUPTED_CODE
    print(*report_lines(report), sep="\n")
    return 1 if any(run.faults for run in report.runs) else 0


def _parser() -> argparse.ArgumentParser:
    profiles = "; ".join(f"{name}: {profile.about}" for name, profile in PROFILES.items())
    parser = Parser(
        "lmpool bench chat",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    server = parser.add_argument_group("server")
    server.add_argument("--url", default="http://127.0.0.1:8000", help="without /v1 (default %(default)s)")
    server.add_argument("--model", metavar="NAME", help="(default: the first that the server lists)")
    server.add_argument("--api-key-file", type=Path, metavar="F", help="with a key (default: $OPENAI_API_KEY)")
    server.add_argument(
        "--dialect",
        choices=[dialect.value for dialect in Dialect],
        default=Dialect.EXTENDED.value,
        help="extended: also ignore_eos and min_tokens, for answers of a set length (default)",
    )
    server.add_argument("--patience", type=factor, default=600.0, metavar="S", help="(default %(default)g)")
    load = parser.add_argument_group("load")
    load.add_argument("--profile", choices=tuple(PROFILES), default="quick", help=f"{profiles} (default %(default)s)")
    load.add_argument("--workload", nargs="+", choices=WORKLOADS, default=list(WORKLOADS[:2]))
    load.add_argument("--rate", type=factor, metavar="X", help="users a second, of multi-round-chat")
    load.add_argument(
        "--burst", type=count, default=1, metavar="N", help="users at a time, at the same rate (default 1)"
    )
    load.add_argument("--seconds", type=factor, metavar="S", help="in which users come")
    load.add_argument("--documents", type=count, metavar="N", help="of long-doc-qa, five questions each")
    load.add_argument("--in-flight", type=count, metavar="N", help="of long-doc-qa, at most (default 4)")
    load.add_argument("--scale", type=scale, metavar="X", help="of all lengths")
    load.add_argument("--pauses", type=factor_from_zero, metavar="X", help="of all pauses")
    load.add_argument("--seed", type=int, default=0, metavar="S", help="of the workload (default 0)")
    load.add_argument("--cache", choices=[one.value for one in CacheCondition], default=CacheCondition.COLD.value)
    load.add_argument("--contents", type=int, metavar="S", help="seed of the texts (default: one that is new)")
    load.add_argument("--tokenizer", metavar="FILE", help="tokenizer.json of the model, for exact lengths")
    load.add_argument("--processes", type=count, default=1, metavar="N", help="of this client (default 1)")
    verdict = parser.add_argument_group("verdict")
    verdict.add_argument("--ttft-max", type=factor, metavar="S", help="for goodput")
    verdict.add_argument("--e2e-max", type=factor, metavar="S", help="for goodput")
    verdict.add_argument(
        "--errors-max", type=factor_from_zero, default=0.01, metavar="X", help="share (default %(default)g)"
    )
    verdict.add_argument("--late-max", type=factor, default=0.02, metavar="S", help="p99 (default %(default)g)")
    parser.add_argument("--json", type=output, metavar="FILE", help="write the figures there")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write every request there, one a line")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of the figures, and end")
    return parser


def _target(given: argparse.Namespace) -> Target:
    """Raises ClientError."""
    key = os.environ.get("OPENAI_API_KEY") if given.api_key_file is None else operator_key(given.api_key_file)
    if not given.url.startswith(("http://", "https://")):
        raise ClientError(f"{given.url!r} is no address of a server; it looks like http://127.0.0.1:8000")
    model = given.model
    if model is None:
        models = fetch_document(given.url, "/v1/models", key)
        try:
            model = models["data"][0]["id"]
        except (KeyError, IndexError, TypeError):
            raise ClientError(f"{given.url} lists no model; name one with --model") from None
    return Target(
        url=given.url.rstrip("/"),
        model=model,
        key=key,
        dialect=Dialect(given.dialect),
        tokenizer=given.tokenizer,
        vocabulary=None,
        contents_seed=secrets.randbits(32) if given.contents is None else given.contents,
        patience_s=given.patience,
    )


def _settings(given: argparse.Namespace, workload: str) -> LoadSettings:
    profile = PROFILES[given.profile]

    def chosen(name: str) -> float:
        value: float | None = getattr(given, name)
        return getattr(profile, name) if value is None else value

    return LoadSettings(
        workload=workload,
        seed=given.seed,
        scale=chosen("scale"),
        pauses=chosen("pauses"),
        rate=chosen("rate"),
        seconds=chosen("seconds"),
        burst=given.burst,
        documents=given.documents or profile.documents,
        in_flight=given.in_flight,
        condition=CacheCondition(given.cache),
        processes=given.processes,
        bounds=Bounds(given.ttft_max, given.e2e_max),
        allowed=Allowed(given.errors_max, given.late_max),
    )


class _Bar:
    """Requests that have ended, and the time that is left."""

    def __init__(self, what: str, total: int) -> None:
        self._bar = tqdm(total=total, desc=what, unit="req", file=sys.stderr, mininterval=0.5, leave=False)

    def step(self) -> None:
        self._bar.update(1)

    def close(self) -> None:
        self._bar.close()
