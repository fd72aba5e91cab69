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
