import attrs
import pytest

from lmpool.core.ids import Epoch, Nanos, Rank
from lmpool.core.placement.fetch import Giver, fetches, with_pulls
from lmpool.core.placement.occasions import propose
from lmpool.core.placement.price import TransferPrices
from lmpool.core.placement.proposal import USUAL, Gate, Occasion
from lmpool.core.placement.rent import UNTRIED_SHARE, Rents
from lmpool.io.calibration import CalibratedPair, Calibration, CopyPoint, StepPoint
from tests.core.places import (
    MILLI,
    NOW,
    conditions,
    flat_prices,
    held,
    pair,
    placement_view,
    point,
    profile,
    site,
    underway,
)
from tests.core.plane import chain, question
from tests.core.views import idle_rank, route_view
from tests.specs.tables import names_of_tests, read_rows

CALIBRATED = profile(point(1, (1, 2), (2, 6)), point(8, (7, 11), (2, 8)))


def observed(cell: str) -> list[float]:
    times: list[float] = []
    for word in cell.split():
        if word.startswith("x"):
            times += times[-1:] * (int(word[1:]) - 1)
        else:
            times.append(float(word))
    return times


@pytest.mark.parametrize("row", read_rows("placement.md", "Price"), ids=lambda row: str(row["example"]))
def test_price(row: dict[str, str]) -> None:
    prices = TransferPrices(CALIBRATED)
    for time in observed(row["observed"]):
        expected = prices.price(pair(0, 1), 8)
        prices.observe(Nanos(0), pair(0, 1), 8, expected, Nanos(round(time * MILLI)))
    price = prices.price(pair(0, 1), int(row["blocks"]))
    assert (f"{price.median_ns / MILLI:.3f}", f"{price.p95_ns / MILLI:.3f}") == (row["median"], row["P95"])


@pytest.mark.parametrize("row", read_rows("placement.md", "Gates worked"), ids=lambda row: str(row["example"]))
def test_proposals(row: dict[str, str]) -> None:
    occasion = Occasion(row["occasion"])
    waits, depths, free = (row[name].split() for name in ("waits", "depths", "free"))
    sites = [
        site(
            rank,
            wait=float(waits[rank]),
            free=int(free[rank]),
            is_draining=occasion is Occasion.DRAIN and rank == 0,
        )
        for rank in range(2)
    ]
    chain = held("a", list(map(int, depths)), weight=float(row["weight"]), visits=int(row["visits"]))
    proposals = propose(placement_view(sites, [chain]), USUAL, flat_prices(15, 40))
    (proposal,) = [proposal for proposal in proposals if proposal.occasion is occasion]
    assert proposal.pair == pair(0, 1)
    found = {
        "blocks": str(proposal.blocks),
        "visitors": f"{proposal.visitors:.1f}",
        "saved": f"{proposal.saved_ns / MILLI:.3f}",
        "gate": "" if proposal.gate is None else proposal.gate.value,
    }
    assert found == {name: row[name] for name in found}


@pytest.mark.parametrize("row", read_rows("placement.md", "Rent"), ids=lambda row: str(row["example"]))
def test_rent(row: dict[str, str]) -> None:
    rents = Rents()
    rents.begin(NOW, Rank(1), 0)
    rents.count(NOW, Rank(1), int(row["cached"]), chain(("x", int(row["reclaimed"]))))
    sites = [site(0, wait=800), attrs.evolve(site(1), blocks_free=int(row["free"]))]
    found = attrs.evolve(conditions(2), rents=rents.tokens)
    (proposal,) = propose(
        placement_view(sites, [held("a", [int(row["blocks"]), 0])], found), USUAL, flat_prices(15, 40)
    )
    assert f"{rents.tokens.get(Rank(1), UNTRIED_SHARE * site(1).block_size):.3f}" == row["tokens"]
    assert f"{proposal.rent_ns / MILLI:.3f}" == row["rent"]
    assert ("" if proposal.gate is None else proposal.gate.value) == row["gate"]
    assert proposal.gain_ns == proposal.saved_ns - proposal.rent_ns


@pytest.mark.parametrize("row", read_rows("placement.md", "Pull on route"), ids=lambda row: str(row["example"]))
def test_pulls(row: dict[str, str]) -> None:
    ready, brings, others = list(map(int, row["ready"].split())), int(row["brings"]), float(row["others"])
    asked = question(1, chain(("a", 40)), 640)
    view = attrs.evolve(
        route_view(asked, [idle_rank(0), idle_rank(1)], ready), now=NOW, waits=[0.0, float(row["wait"]) * MILLI]
    )
    carried = (1, chain(("a", brings))) if brings else (5, chain(("b", 5)))
    running = [underway(0, *carried, price=(others, 2 * others))] if others else []
    givers = [Giver(Rank(rank), Epoch(1), depth) for rank, depth in enumerate(ready)]
    prices = flat_prices(float(row["price"]), float(row["P95"]))
    pulls = fetches(view, givers, USUAL, prices, conditions(6, underway=running))
    pull = pulls[1]
    assert pull is not None
    uncached, waits = with_pulls(view, pulls)
    found = {
        "saved": f"{pull.saved_ns / MILLI:.3f}",
        "gate": "" if pull.gate is None else pull.gate.value,
        "begins": f"{waits[1] / MILLI:.1f}",
        "computes": str(uncached[1]),
    }
    assert found == {name: row[name] for name in found}


def test_every_field_of_a_calibration_stands_in_its_table() -> None:
    kinds = {"file": Calibration, "step": StepPoint, "pair": CalibratedPair, "point": CopyPoint}
    fields = [(field.name, of) for of, kind in kinds.items() for field in attrs.fields(kind)]
    assert [(row["field"], row["of"]) for row in read_rows("placement.md", "The calibration file")] == fields


def test_every_gate_stands_in_the_table() -> None:
    assert sorted(row["gate"] for row in read_rows("placement.md", "Gates")) == sorted(gate.value for gate in Gate)


def test_the_settings_are_those_of_the_table() -> None:
    rows = {row["setting"]: row for row in read_rows("placement.md", "Settings")}
    assert {name: float(row["value"]) for name, row in rows.items()} == attrs.asdict(USUAL)
    assert all(row["reason"] for row in rows.values())


def test_the_faults_of_the_reference_are_tests_here() -> None:
    rows = read_rows("placement.md", "What the reference does, and what is here")
    assert [row["test"] for row in rows if row["test"] not in names_of_tests()] == []
