import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lmpool.gpu.revision import weights_revision

pytestmark = pytest.mark.model


def write(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, object]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return weights_revision(folder)


def test_the_same_content_has_the_same_revision_wherever_it_lies(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(100.0), "b": torch.ones(3, 4)}
    first = write(tmp_path / "one", tensors, {"x": 1})
    assert first == write(tmp_path / "two", tensors, {"x": 1})
    assert len(first) == 32


def test_values_shapes_names_and_configuration_change_it(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(100.0), "b": torch.ones(3, 4)}
    revisions = [
        write(tmp_path / "m", tensors, {"x": 1}),
        write(tmp_path / "m", {**tensors, "b": tensors["b"] * 2}, {"x": 1}),
        write(tmp_path / "m", {**tensors, "b": tensors["b"].reshape(4, 3)}, {"x": 1}),
        write(tmp_path / "m", {"a": tensors["a"], "c": tensors["b"]}, {"x": 1}),
        write(tmp_path / "m", tensors, {"x": 2}),
    ]
    assert len(set(revisions)) == len(revisions)


@pytest.mark.parametrize("place", [0, 50_000, 99_999])
def test_begin_middle_and_end_of_a_large_tensor_count(tmp_path: Path, place: int) -> None:
    tensor = torch.zeros(100_000)
    before = write(tmp_path / "m", {"a": tensor}, {})
    tensor[place] = 1
    assert write(tmp_path / "m", {"a": tensor}, {}) != before
