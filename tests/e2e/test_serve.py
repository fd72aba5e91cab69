"""One command, one endpoint: what an operator and a client see of a server that does well."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from tests.e2e.server import RECOVERY_S, ROOT, Server, assert_gone, moments, serving

BLOCK = 16
PROMPT = "the quick brown fox jumps over the lazy dog, again and again, until it is tired of it"


@pytest.fixture(scope="module")
def server(integer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("serve"), str(integer_folder), "--replicas", "2") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_start_tells_what_the_operator_wants_to_know(server: Server, integer_folder: Path) -> None:
    log = server.log()
    for part in ("2 replicas (as ordered)", "policy default", "worker 0: ready", "worker 1: ready", "control: ready"):
        assert part in log, log
    assert "ingress: ready" in log
    assert "chat on" in log
    assert integer_folder.name in log
    assert "longest context" in log


def test_the_pool_consists_of_the_processes_that_the_operator_expects(server: Server) -> None:
    assert sorted(server.children()) == ["control", "ingress", "worker-0", "worker-1"]


def test_both_probes_are_green(server: Server) -> None:
    assert httpx.get(server.url + "/livez").status_code == 200
    assert httpx.get(server.url + "/readyz").status_code == 200


def test_chat_and_completion_answer(client: OpenAI, integer_folder: Path) -> None:
    model = client.models.list().data[0].id
    chat = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hello"}], max_tokens=8, temperature=0
    )
    assert chat.choices[0].finish_reason in ("stop", "length")
    assert chat.model == model
    completion = client.completions.create(model=integer_folder.name, prompt=PROMPT, max_tokens=8, temperature=0)
    assert completion.usage is not None
    assert 0 < completion.usage.completion_tokens <= 8


def test_a_second_request_finds_its_prefix_and_gets_the_same_text(
    server: Server, client: OpenAI, integer_folder: Path
) -> None:
    def known() -> int:
        hashes: int = httpx.get(server.url + "/pool/state").json()["page_table_hashes"]
        return hashes

    asked = {"model": integer_folder.name, "prompt": "once more " + PROMPT * 10, "max_tokens": 16, "temperature": 0}
    before = known()
    first = client.completions.create(**asked)  # type: ignore[call-overload]
    assert first.usage is not None
    assert any(known() >= before + first.usage.prompt_tokens // BLOCK for _ in moments(5)), "control was not told"
    second = client.completions.create(**asked)  # type: ignore[call-overload]
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens // BLOCK * BLOCK
    assert second.choices[0].text == first.choices[0].text


def test_streamed_and_whole_answers_are_equal(client: OpenAI, integer_folder: Path) -> None:
    asked = {"model": integer_folder.name, "prompt": "a stream", "max_tokens": 24, "temperature": 0, "seed": 5}
    whole = client.completions.create(**asked).choices[0].text  # type: ignore[call-overload]
    stream = client.completions.create(**asked, stream=True)  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == whole


def test_many_at_once_all_end_and_use_both_replicas(server: Server, client: OpenAI, integer_folder: Path) -> None:
    def ask(number: int) -> str | None:
        answer = client.completions.create(
            model=integer_folder.name, prompt=f"number {number}: {PROMPT}", max_tokens=16, temperature=0
        )
        return answer.choices[0].finish_reason

    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(ask, range(48))) <= {"stop", "length"}
    routed = [replica["routed"] for replica in httpx.get(server.url + "/pool/state").json()["replicas"]]
    assert all(count > 0 for count in routed)


def test_status_prints_each_rank(server: Server) -> None:
    command = [sys.executable, "-m", "lmpool", "status", "--url", server.url]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [["0", "live"], ["1", "live"]]


def explained(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lmpool", "explain", *arguments, "--url", server.url]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_a_request_is_explained_by_every_name_it_has(server: Server, client: OpenAI, integer_folder: Path) -> None:
    prompts = [PROMPT + " explained", PROMPT + " twice"]
    asked = {"model": integer_folder.name, "prompt": prompts, "max_tokens": 4, "temperature": 0}
    raw = client.completions.with_raw_response.create(**asked, extra_headers={"x-request-id": "mine"})  # type: ignore[call-overload]
    inner = raw.headers["x-lmpool-request"]
    told = explained(server, raw.parse().id)
    assert told.returncode == 0, told.stderr
    assert [line.split(":")[0] for line in told.stdout.splitlines() if line.startswith("request ")] == [
        f"request {word}" for word in inner.split(",")
    ]
    assert told.stdout.count("  -> ") == told.stdout.count("expected: ") == told.stdout.count("really: ") == 2
    assert told.stdout.count("outcome: complete; ") == 2
    assert told.stdout == explained(server, "mine").stdout == explained(server, inner).stdout
    assert told.stdout.startswith(explained(server, inner.split(",")[0]).stdout)


def test_an_unknown_request_is_told_in_one_line(server: Server) -> None:
    told = explained(server, "cmpl-nobody")
    assert (told.returncode, told.stdout) == (1, "")
    assert "nothing is known of request 'cmpl-nobody'" in told.stderr
    assert len(told.stderr.splitlines()) == 1


def test_the_run_folder_is_private_and_nothing_is_left_at_the_end(integer_folder: Path, tmp_path: Path) -> None:
    with serving(tmp_path, str(integer_folder), "--replicas", "1") as server:
        (run,) = server.runs.iterdir()
        assert run.stat().st_mode & 0o777 == 0o700
        children = list(server.children().values())
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_end(RECOVERY_S) == 0
        assert_gone(children, 0.1)
        assert list(server.runs.iterdir()) == []
        assert server.rest_of_output() == ""
        assert "Traceback" not in server.log()


def test_with_keys_a_tenant_sees_and_explains_its_own_requests_only(integer_folder: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("red-key red\nblue-key blue\nroot-key ops admin\n")
    arguments = (str(integer_folder), "--replicas", "1", "--api-key-file", str(keys))
    with serving(tmp_path, *arguments) as server:
        words = {}
        for key in ("red-key", "blue-key"):
            response = httpx.post(
                server.url + "/v1/completions",
                headers={"authorization": f"Bearer {key}"},
                json={"prompt": PROMPT, "max_tokens": 2},
            )
            words[key] = response.headers["x-lmpool-request"]

        def seen(key: str, query: str) -> set[str]:
            answer = httpx.get(server.url + "/pool/decisions" + query, headers={"authorization": f"Bearer {key}"})
            return {one["request"] for one in (*answer.json()["decisions"], *answer.json()["requests"])}

        red, blue = words.values()
        assert seen("red-key", "") == {red}
        assert seen("blue-key", "") == {blue}
        assert seen("root-key", "") == {red, blue}
        assert seen("red-key", f"?request={blue}") == set()
        assert seen("root-key", f"?request={blue}") == {blue}


def test_a_log_in_json_is_json_line_for_line(integer_folder: Path, tmp_path: Path) -> None:
    with serving(
        tmp_path, str(integer_folder), "--replicas", "1", "--log-format", "json", "--log-level", "debug"
    ) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_end(RECOVERY_S) == 0
        records = [json.loads(line) for line in server.log().splitlines()]
        assert {"supervisor", "worker-0"} <= {record["process"] for record in records}
        assert all(record["event"] for record in records)


def test_b61_eight_servers_started_at_the_same_moment_all_come_up(integer_folder: Path, tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(8)]
    for folder in folders:
        folder.mkdir()
    arguments = (str(integer_folder), "--replicas", "1", "--port", "0", "--run-folder", str(tmp_path / "runs"))
    servers = [Server(folder, arguments) for folder in folders]
    try:
        for server in servers:
            server.wait_ready()
        assert len({server.url for server in servers}) == 8
        for server in servers:
            server.process.send_signal(signal.SIGTERM)
        assert [server.wait_end(30) for server in servers] == [0] * 8
    finally:
        for server in servers:
            server.close()
