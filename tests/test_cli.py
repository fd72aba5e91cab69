import json
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import lmpool
from lmpool import cli
from lmpool.io.settings.tree import knobs


def outcome(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    try:
        code = cli.main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    told = capsys.readouterr()
    return code, told.out, told.err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(["--version"], capsys) == (0, f"lmpool {lmpool.__version__}\n", "")


def test_help_tells_every_knob_with_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = outcome(["serve", "--help"], capsys)
    assert code == 0
    for knob in knobs():
        assert ("MODEL" if knob.name == "model" else knob.flag) in text
        assert f"[{knob.section}]" in text
    assert "examples:" in text
    assert "exit codes:" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "lmpool: the following arguments are required: COMMAND"),
        (["server"], "lmpool: argument COMMAND: invalid choice"),
        (["serve", "--replica", "2"], "lmpool serve: unknown --replica; did you mean --replicas?"),
        (["status", "--port", "8431"], "lmpool status: unknown --port 8431"),
        (["status", "--ur", "http://x"], "lmpool status: unknown --ur http://x; did you mean --url?"),
        (["explain"], "lmpool explain: the following arguments are required: REQUEST_ID"),
        (["explain", "1-2", "--ur", "http://x"], "lmpool explain: unknown --ur http://x; did you mean --url?"),
        (["serve", "--replicas"], "lmpool serve: argument --replicas: expected one argument"),
        (["serve", "--replicas", "none"], "lmpool serve: replicas = 'none' (flag --replicas): allowed is a whole"),
        (["serve", "a", "b"], "lmpool serve: unknown b"),
        (["serve", "--kv-blocks", "9", "--kv-memory", "1GiB"], "contradict each other"),
        (["serve", "--config", "/nowhere"], "cannot read the settings file /nowhere"),
        (["serve", "--api-key-file", "/nowhere"], "cannot read the key file /nowhere"),
        (["bench", "nothing"], "lmpool bench: argument name: invalid choice"),
    ],
)
def test_wrong_usage_is_told_in_one_or_two_lines(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = outcome(arguments, capsys)
    assert (code, out) == (2, "")
    assert told in err
    assert 1 <= len(err.splitlines()) <= 2


def test_a_busy_port_ends_the_start_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = outcome(["serve", "/nowhere", "--port", str(port)], capsys)
    assert (code, out) == (1, "")
    assert err == (
        f"lmpool serve: port {port} of 127.0.0.1 is in use; choose another with --port (--port 0 takes a free one)\n"
    )


def test_status_of_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = outcome(["status", "--url", "http://127.0.0.1:1"], capsys)
    assert (code, out) == (1, "")
    assert "no server answers at http://127.0.0.1:1" in err
    assert len(err.splitlines()) == 1


def test_explain_of_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = outcome(["explain", "1-23", "--url", "http://127.0.0.1:1"], capsys)
    assert (code, out) == (1, "")
    assert err.startswith("lmpool explain: no server answers at http://127.0.0.1:1")
    assert len(err.splitlines()) == 1


def test_bench_hands_its_flags_on(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = outcome(["bench", "decision", "--resident", "2000", "--repeats", "20", "--json", "-"], capsys)
    assert code in (0, 1)
    assert json.loads(out)["decision"]


def test_bench_has_help_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = outcome(["bench", "--help"], capsys)
    assert code == 0
    assert "decision" in text
    code, text, _ = outcome(["bench", "decision", "--help"], capsys)
    assert code == 0
    assert "--resident" in text


def test_a_bench_without_its_library_says_what_to_install() -> None:
    program = "import sys; sys.modules['httpx'] = None; from lmpool.cli import main; sys.exit(main(['bench', 'chat']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "lmpool bench chat needs httpx: pip install 'lmpool[bench]'\n"


def test_term_ends_a_measurement_as_an_interruption_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def measure(arguments: Sequence[str]) -> int:
        signal.raise_signal(signal.SIGTERM)
        return len(arguments)

    monkeypatch.setattr("lmpool.bench.calibrate.main", measure)
    assert outcome(["calibrate", "model"], capsys) == (130, "", "lmpool calibrate: interrupted\n")
    assert signal.getsignal(signal.SIGTERM) == before


def test_whoever_reads_only_the_beginning_sees_no_trace() -> None:
    file = Path(__file__).parents[1] / "specs" / "evidence" / "policies.jsonl.xz"
    command = [sys.executable, "-m", "lmpool", "bench", "routing", "--report", "--json", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141
