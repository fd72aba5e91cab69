from pathlib import Path

import pytest

from tests.model_folder import write_tiny_folder


@pytest.fixture(scope="session")
def integer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without weights, whose tokens are exact."""
    return write_tiny_folder(tmp_path_factory.mktemp("models") / "integer")


@pytest.fixture(scope="session")
def slow_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with steps of 50 ms, so that something can happen while it answers."""
    return write_tiny_folder(tmp_path_factory.mktemp("models") / "slow", config={"step_ns": 50_000_000})


@pytest.fixture(scope="session")
def tiny_llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of a Llama with two layers."""
    import torch  # noqa: PLC0415
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415

    folder = write_tiny_folder(tmp_path_factory.mktemp("models") / "llama", "LlamaForCausalLM")
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    return folder
