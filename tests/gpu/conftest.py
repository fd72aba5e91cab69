"""One thread: tiny tensors gain nothing from two, and tests run side by side."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
