"""A short hunt on every endpoint; `tools/fuzz --http` is the long one."""

import asyncio
from pathlib import Path

import pytest

from lmpool.io.http.openapi import openapi_document
from tests.fuzz.http import hunt
from tests.fuzz.rig import rig
from tests.fuzz.wire import short_folder
from tests.model_folder import write_tiny_folder

REQUESTS = 12


@pytest.mark.slow
def test_b10_whatever_the_document_allows_or_forbids_has_an_answer_in_form(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig(short_folder(tmp_path), write_tiny_folder(tmp_path / "model"), None) as made:
            figures = await hunt(made, 1, REQUESTS)
            assert {word.split()[0] for word in figures.answers} == set(openapi_document()["paths"])
            assert figures.answers["/v1/completions 200"] + figures.answers["/v1/chat/completions 200"] > 0
            assert figures.streams > 0

    asyncio.run(body())
