from lmpool.bench.decision import BOUNDS_US, DecisionRow, measure


def test_every_promise_has_a_row_with_its_bound() -> None:
    rows = measure("default", 4_000, 20, 1)
    named = {(row.what, row.chain_blocks): row for row in rows}
    for blocks, (alone, booked) in BOUNDS_US.items():
        assert named["decision", blocks].bound == alone
        assert named["decision and booking", blocks].bound == booked
    assert {row.what for row in rows} >= {"report of 1,000 blocks", "page table"}
    assert all(0 < row.median <= row.p99 for row in rows)


def test_a_row_says_whether_its_promise_is_kept() -> None:
    assert DecisionRow("decision", 40, "us", 39.0, 99.0, 40.0).is_within
    assert not DecisionRow("decision", 40, "us", 40.0, 99.0, 40.0).is_within
