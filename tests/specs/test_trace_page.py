"""The example of specs/trace.md is a trace."""

from pathlib import Path

from lmpool.sim.trace import Part, prompt_lengths
from lmpool.sim.trace_formats import read_trace
from tests.specs.tables import SPECS


def test_the_example_of_the_page_is_read(tmp_path: Path) -> None:
    page = (SPECS / "trace.md").read_text()
    path = tmp_path / "example.jsonl"
    path.write_text(page.split("```")[1].strip() + "\n")
    made = read_trace(path, None)
    assert made.name == "example"
    assert prompt_lengths(made) == [1324, 1104, 1324 + 120 + 60]
    assert made.requests[2].parts == (Part(3, 60),)
    assert made.requests[2].continues == 0
