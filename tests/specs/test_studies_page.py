import re

import pytest

from lmpool.bench.interval import t_quantile
from lmpool.bench.study.folder import LEDGER, PLAN, STUDY
from lmpool.bench.study.pack import PACKED_MAX
from lmpool.bench.study.plan import Bound, Kind, Statistic, Sweep
from lmpool.bench.study.plan_text import parse_plan
from lmpool.bench.study.runner import ATTEMPTS
from lmpool.bench.study.sweep import knee
from tests.specs.tables import SPECS, read_rows

PAGE = "studies.md"
TEXT = (SPECS / PAGE).read_text()


def test_intervals_are_as_wide_as_the_page_says() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in TEXT.splitlines()
        if re.fullmatch(r"\| \d+ \| \d+\.\d{3} \|", line)
    ]
    assert [f"{t_quantile(int(count) - 1):.3f}" for count, _ in rows] == [width for _, width in rows]
    assert len(rows) == 4


@pytest.mark.parametrize("row", read_rows(PAGE, "Knees"))
def test_knees_of_the_page_come_out(row: dict[str, str]) -> None:
    means = {float(budget): float(mean) for budget, mean in (pair.split(": ") for pair in row["means"].split(", "))}
    assert knee(means, Sweep().within) == float(row["knee"])


def test_the_plan_of_the_page_is_one_and_names_every_choice() -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
    plan = parse_plan(text.encode(), PAGE)
    assert plan.sweep == Sweep()
    for choices in (Kind, Statistic, Bound):
        assert all(choice.value in text for choice in choices)


def test_the_page_names_the_files_of_a_study() -> None:
    files = [row["file"] for row in read_rows(PAGE, "A folder")]
    assert files == [PLAN, STUDY, "trials/NAME", "trials/NAME.failed-1", "trials/NAME.torn-1", LEDGER]
    assert f"at most {PACKED_MAX:,} bytes" in TEXT
    assert ATTEMPTS == 2, "the page says: tried again once"
