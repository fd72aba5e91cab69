"""Starts that fail: one cause, what to do, an exit code, and no trace."""

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.e2e.server import START_S, Server, started
from tests.model_folder import write_tiny_folder


def failed_start(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    """Exit code and all lines of standard error."""
    with started(folder, *arguments) as server:
        code = server.wait_end(START_S)
        assert server.rest_of_output() == ""
        lines = server.log().splitlines()
        assert "Traceback (most recent call last):" not in lines, server.log()
        assert not server.runs.exists() or list(server.runs.iterdir()) == []
        return code, lines


def test_b82_a_wrong_model_name_is_told_with_what_was_looked_for(tmp_path: Path) -> None:
    code, lines = failed_start(tmp_path, "/nowhere/at/all", "--replicas", "1")
    assert code == 1
    assert lines[-2].startswith("lmpool: the start failed: prepare: ")
    assert "/nowhere/at/all" in lines[-2]
    assert lines[-1].startswith("hint: ")


def test_b82_a_folder_without_weights_is_told(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "model", "LlamaForCausalLM")
    code, lines = failed_start(tmp_path, str(folder), "--replicas", "1")
    assert code == 1
    assert "model.safetensors" in lines[-2]


def test_a_context_beyond_the_models_limit_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "model", "LlamaForCausalLM")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    limit = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    code, lines = failed_start(tmp_path, str(folder), "--replicas", "1", "--max-model-len", str(limit + 1))
    assert code == 1
    assert lines[-2:] == [
        f"lmpool: the start failed: prepare: --max-model-len {limit + 1} is more than {limit}, the model's limit",
        f"hint: use --max-model-len {limit} or less",
    ]
    assert not any("torch" in line for line in lines)


def test_a_busy_port_is_one_line(integer_folder: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, lines = failed_start(tmp_path, str(integer_folder), "--port", port)
    assert code == 1
    assert len(lines) == 1
    assert f"port {port} of 127.0.0.1 is in use" in lines[0]
    assert "--port" in lines[0]


def test_wrong_settings_are_one_line_and_code_2(integer_folder: Path, tmp_path: Path) -> None:
    code, lines = failed_start(tmp_path, str(integer_folder), "--replicas", "65")
    assert code == 2
    assert lines == ["lmpool serve: replicas = '65' (flag --replicas): allowed is a whole number from 1 to 64"]


def test_a_damaged_tokenizer_is_told_by_the_ingress(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "model")
    (folder / "tokenizer.json").write_text("{}")
    code, lines = failed_start(tmp_path, str(folder), "--replicas", "1")
    assert code == 1
    assert any("ingress: " in line and "tokenizer.json" in line for line in lines[-3:]), lines


@pytest.mark.model
def test_b78_a_device_that_is_missing_is_one_clear_line(tiny_llama_folder: Path, tmp_path: Path) -> None:
    code, lines = failed_start(tmp_path, str(tiny_llama_folder), "--replicas", "1", "--device", "cuda:7")
    assert code == 1
    assert lines[-2].startswith("lmpool: the start failed: worker 0: ")
    assert "cuda:7" in lines[-2]
    assert "--device" in lines[-1]


@pytest.mark.model
def test_b79_a_pool_too_small_for_the_context_names_the_flags(tiny_llama_folder: Path, tmp_path: Path) -> None:
    code, lines = failed_start(
        tmp_path, str(tiny_llama_folder), "--replicas", "1", "--device", "cpu", "--kv-memory", "1024GiB"
    )
    assert code == 1
    assert "--kv-" in lines[-1] + lines[-2]


@contextmanager
def never_ready(server: Server, name: str) -> Iterator[None]:
    """Keeps every life of a process stopped: one that stands still is replaced after a while."""
    over = threading.Event()

    def hold() -> None:
        while not over.wait(0.05):
            _signal(signal.SIGSTOP)

    def _signal(number: signal.Signals) -> None:
        pid = server.children().get(name)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        yield
    finally:
        over.set()
        holder.join()
        _signal(signal.SIGCONT)


@pytest.mark.model
def test_b64_a_server_that_loads_is_alive_and_not_ready(tiny_llama_folder: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    arguments = (str(tiny_llama_folder), "--replicas", "1", "--device", "cpu", "--kv-blocks", "64", "--port", port)
    with started(tmp_path, *arguments) as server:
        url = f"http://127.0.0.1:{port}"
        server.wait_for_child("worker-0", 0)
        with never_ready(server, "worker-0"):
            assert httpx.get(url + "/livez", timeout=START_S).status_code == 200
            ready = httpx.get(url + "/readyz", timeout=START_S)
            asked = httpx.post(url + "/v1/completions", json={"prompt": "hello", "max_tokens": 4}, timeout=START_S)
        assert (ready.status_code, asked.status_code) == (503, 503)
        assert "retry-after" in asked.headers
        server.wait_ready()
        assert httpx.get(url + "/readyz", timeout=START_S).status_code == 200
        asked = httpx.post(url + "/v1/completions", json={"prompt": "hello", "max_tokens": 4}, timeout=START_S)
        assert asked.status_code == 200
