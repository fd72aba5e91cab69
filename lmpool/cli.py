"""The command line: what is asked for, and which part does it. Flags of `serve` come from the settings themselves."""

import argparse
import asyncio
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path

import lmpool
from lmpool.bench.flags import INTERRUPTED_CODE, USAGE_CODE, Parser
from lmpool.io.settings.knob import Knob, Pathname, Seconds, Size, Text, Texts, size_text
from lmpool.io.settings.sources import CONFIG_VARIABLE, SettingsError, read_settings
from lmpool.io.settings.tree import knobs

SECTIONS = {
    "model": "model",
    "pool": "replicas and their KV caches",
    "batch": "batches",
    "routing": "routing",
    "http": "HTTP",
    "supervision": "processes",
    "log": "log",
}

BENCHES = {
    "chat": "lmpool.bench.chat",
    "decision": "lmpool.bench.decision_table",
    "e2e": "lmpool.bench.e2e",
    "engine": "lmpool.bench.engine",
    "fidelity": "lmpool.bench.fidelity",
    "locality": "lmpool.bench.locality",
    "routing": "lmpool.bench.routing",
    "transfer": "lmpool.bench.transfer",
}
MEASURING = {
    "simulate": "lmpool.bench.simulate",
    "calibrate": "lmpool.bench.calibrate",
    "study": "lmpool.bench.study.command",
}
"""Commands that read their own flags, as each measurement does."""

SERVER_FLAGS = ("--url", "--api-key-file")

EXPLAIN_ABOUT = (
    "REQUEST_ID is the id in an answer (cmpl-..., chatcmpl-...), its x-request-id header, or its x-lmpool-request "
    "header (1-23, or 1-23,1-24 for two prompts). Shows every attempt of every prompt."
)

SERVE_ABOUT = """\
Serve MODEL from several replicas as one OpenAI-compatible endpoint.

When requests are taken, `ready http://HOST:PORT` stands on standard output; all else goes to standard error.
Settings come from defaults, then --config (TOML, sections as the groups below), then the environment
(LMPOOL_ and the flag's name), then flags. Ctrl+C or TERM lets running requests finish; a second one ends at once.
"""

SERVE_EXAMPLES = """\
examples:
  lmpool serve                                              a small model, fetched once
  lmpool serve ./Qwen3-0.6B --replicas 2 --kv-memory 4GiB
  lmpool serve ./model.gguf --served-model-name tiny --port 8080
  lmpool serve ./model --host 0.0.0.0 --api-key-file keys.txt
  LMPOOL_POLICY=round-robin lmpool serve --config lmpool.toml   (lmpool.toml: [pool] and replicas = 4)

exit codes:
  0  ended by Ctrl+C or TERM    1  the start failed, or a process could not be kept running
  2  wrong settings or usage    130, 143  a second Ctrl+C or TERM ended it before its requests were done
"""


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="lmpool",
        description="One language model, all accelerators of a machine, one pool of KV caches.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"lmpool {lmpool.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands)
    status = commands.add_parser("status", help="show the pool of a running server", allow_abbrev=False)
    _add_server(status)
    explain = commands.add_parser(
        "explain",
        help="show why a request of a running server went where it went, and what became of it",
        description=EXPLAIN_ABOUT,
        allow_abbrev=False,
    )
    explain.add_argument("request", metavar="REQUEST_ID", help="as above")
    _add_server(explain)
    commands.add_parser("simulate", help="replay a trace or a workload under one policy after another", add_help=False)
    commands.add_parser("study", help="compare arms as a plan says that was written first, and report", add_help=False)
    commands.add_parser("calibrate", help="measure what steps and transfers take here, for a server", add_help=False)
    bench = commands.add_parser("bench", help="measure this machine", allow_abbrev=False)
    bench.add_argument("name", choices=tuple(BENCHES), help="what to measure")
    bench.add_argument("rest", nargs=argparse.REMAINDER, help="flags of that measurement; --help lists them")
    return top


def _add_server(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", default="http://127.0.0.1:8000", help="of the server (default %(default)s)")
    command.add_argument(
        "--api-key-file",
        type=Path,
        metavar="PATH",
        help="of the server, whose first admin key, or else first key, is used (default: the key in $OPENAI_API_KEY, "
        "if any)",
    )


def _add_serve(commands: "argparse._SubParsersAction[Parser]") -> None:
    serve = commands.add_parser(
        "serve",
        help="serve a model",
        description=SERVE_ABOUT,
        epilog=SERVE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    serve.add_argument("--config", type=Path, default=None, metavar="FILE", help=f"TOML file ({CONFIG_VARIABLE})")
    groups = {name: serve.add_argument_group(f"[{name}] {title}") for name, title in SECTIONS.items()}
    for knob in knobs():
        about = _about(knob).replace("%", "%%")
        group = groups[knob.section]
        if knob.name == "model":
            group.add_argument("model", nargs="?", metavar="MODEL", help=about)
        elif isinstance(knob.kind, Texts):
            group.add_argument(knob.flag, nargs="+", action="extend", metavar=knob.kind.metavar, help=about)
        else:
            group.add_argument(knob.flag, metavar=knob.kind.metavar, help=about)


def _about(knob: Knob) -> str:
    match knob.kind, knob.default:
        case _, None | ():
            reason = knob.reason
        case Size(), int() as size:
            reason = f"default {size_text(size)}: {knob.reason}"
        case Seconds(), float() as seconds:
            reason = f"default {seconds:g}: {knob.reason}"
        case _:
            reason = f"default {knob.default}: {knob.reason}"
    allowed = "" if isinstance(knob.kind, Pathname | Text | Texts) else f"; {knob.kind.allowed}"
    return f"{knob.about}{allowed} ({reason})"


def main(arguments: Sequence[str]) -> int:
    """The exit code. Usage errors end the program with code 2."""
    if arguments and arguments[0] in MEASURING:
        return _interruptible(arguments[0], importlib.import_module(MEASURING[arguments[0]]).main, arguments[1:])
    known, unknown = parser().parse_known_args(arguments)
    given = vars(known)
    command = given.pop("command")
    if unknown:
        near = _nearest_flag(command, unknown[0])
        return _fail(f"lmpool {command}: unknown {' '.join(unknown)}{near}", USAGE_CODE)
    match command:
        case "serve":
            return _serve(given.pop("config"), given)
        case "status":
            return _status(given["url"], given["api_key_file"])
        case "explain":
            return _explain(given["request"], given["url"], given["api_key_file"])
        case "bench":
            return _bench(given["name"], given["rest"])
        case _:
            raise AssertionError(command)


def _nearest_flag(command: str, word: str) -> str:
    flags = [knob.flag for knob in knobs()] if command == "serve" else list(SERVER_FLAGS)
    near = get_close_matches(word.partition("=")[0], flags, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _bench(name: str, arguments: Sequence[str]) -> int:
    try:
        bench = importlib.import_module(BENCHES[name])
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        return _fail(f"lmpool bench {name} needs httpx: pip install 'lmpool[bench]'", 1)
    return _interruptible(f"bench {name}", bench.main, arguments)


def _interruptible(name: str, measure: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """TERM ends a measurement as Ctrl+C does, so that its processes and folders go with it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return int(measure(arguments))
    except KeyboardInterrupt:
        return _fail(f"lmpool {name}: interrupted", INTERRUPTED_CODE)
    finally:
        signal.signal(signal.SIGTERM, before)


def _serve(config: Path | None, flags: dict[str, str | list[str]]) -> int:
    from lmpool.io.http.keys import KeyFileError, read_keys
    from lmpool.io.supervision.listener import ListenError
    from lmpool.io.supervision.serving import serve

    try:
        settings = read_settings(config, os.environ, flags)
        if settings.http.api_key_file is not None:
            read_keys(settings.http.api_key_file)
        return asyncio.run(serve(settings))
    except (SettingsError, KeyFileError) as error:
        return _fail(f"lmpool serve: {error}", USAGE_CODE)
    except ListenError as error:
        return _fail(f"lmpool serve: {error}", 1)


def _status(url: str, key_file: Path | None) -> int:
    from lmpool.io.pool_client import ClientError
    from lmpool.io.status import fetch_state, state_lines

    try:
        print(*state_lines(fetch_state(url, _key(key_file))), sep="\n")
    except ClientError as error:
        return _fail(f"lmpool status: {error}", 1)
    return 0


def _explain(request: str, url: str, key_file: Path | None) -> int:
    from lmpool.io.explain import fetch_explanation
    from lmpool.io.pool_client import ClientError

    try:
        print(*fetch_explanation(url, _key(key_file), request), sep="\n")
    except ClientError as error:
        return _fail(f"lmpool explain: {error}", 1)
    return 0


def _key(key_file: Path | None) -> str | None:
    """Raises ClientError."""
    from lmpool.io.pool_client import operator_key

    return operator_key(key_file) if key_file is not None else os.environ.get("OPENAI_API_KEY")


def _fail(line: str, code: int) -> int:
    print(line, file=sys.stderr)
    return code
