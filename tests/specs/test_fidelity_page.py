"""The page on fidelity says what is run and compared."""

from lmpool.bench.fidelity_figures import COUNTS
from lmpool.bench.fidelity_trials import EXACT, LOADS
from tests.specs.tables import SPECS, read_rows

PAGE = "fidelity.md"


def test_every_load_stands_in_its_table() -> None:
    rows = [(row["load"], row["in flight, each replica"], row["pool"]) for row in read_rows(PAGE, "Times")]
    assert rows == [(load.name, str(load.in_flight), load.pool) for load in LOADS]


def test_every_exact_run_and_count_stands_in_its_table() -> None:
    rows = read_rows(PAGE, "Counts")
    runs = [(row["exact run"], row["in flight"], row["pool"]) for row in rows if "exact run" in row]
    words = {0: "1", 1: "replicas"}
    assert runs == [(load.name, words[load.in_flight], load.pool) for load in EXACT]
    text = (SPECS / PAGE).read_text()
    for name in ("rank", "cached tokens"):
        assert f"| {name} | each request |" in text
    for name in COUNTS:
        assert f"| {name.replace('_', ' ')} | each rank |" in text
