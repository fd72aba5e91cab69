"""What is not let go is counted, and what grows over time is told from what is merely busy."""

from multiprocessing.shared_memory import SharedMemory

import pytest

from lmpool.bench.chaos.leaks import Descriptors, grown, held_in, orphans, shared_segments
from lmpool.bench.chaos.soak import Sample, trends

RANK = {
    "blocks": 10,
    "blocks_free": 6,
    "blocks_cached": 4,
    "waiting": 0,
    "prefilling": 0,
    "decoding": 0,
    "booked": 0,
}
STATE = {"replicas": [RANK, RANK], "bookings": 0}
METRICS = """# TYPE lmpool_open_prompts gauge
lmpool_open_prompts{phase="routing"} 0.0
lmpool_requests_running{endpoint="chat"} 0.0
lmpool_requests_started_total{endpoint="chat"} 3.0
lmpool_requests_ended_total{endpoint="chat",outcome="stop"} 2.0
lmpool_requests_ended_total{endpoint="chat",outcome="length"} 1.0
"""


def test_a_quiet_server_holds_nothing() -> None:
    assert held_in(STATE, METRICS) == (0, 0)


def test_blocks_that_are_neither_free_nor_cached_are_held() -> None:
    assert held_in({**STATE, "replicas": [RANK, {**RANK, "blocks_free": 3}]}, METRICS) == (3, 0)


@pytest.mark.parametrize("name", ["waiting", "prefilling", "decoding", "booked"])
def test_sequences_and_bookings_are_held(name: str) -> None:
    assert held_in({**STATE, "replicas": [RANK, {**RANK, name: 2}]}, METRICS) == (0, 2)


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ('{phase="routing"} 0.0', '{phase="routing"} 1.0'),
        ('running{endpoint="chat"} 0.0', 'running{endpoint="chat"} 1.0'),
        ('outcome="length"} 1.0', 'outcome="length"} 0.0'),
    ],
)
def test_requests_that_never_end_are_held(line: str, other: str) -> None:
    assert held_in(STATE, METRICS.replace(line, other)) == (0, 1)


def test_only_more_descriptors_than_before_are_a_leak() -> None:
    before = Descriptors({"ingress": 19, "worker": 17}, 0)
    assert grown(Descriptors({"ingress": 18, "worker": 17}, 0), before) == 0
    assert grown(Descriptors({"ingress": 21, "worker": 18}, 0), before) == 3


def test_a_segment_is_an_orphan_once_nobody_has_it_mapped() -> None:
    before = shared_segments()
    segment = SharedMemory(create=True, size=4096)
    try:
        assert segment.name in shared_segments() - before
        assert orphans(frozenset({segment.name})) == []
        segment.close()
        assert orphans(frozenset({segment.name})) == [segment.name]
    finally:
        segment.unlink()


def samples(values: list[float], name: str) -> list[Sample]:
    return [Sample(60.0 * place, {name: value}) for place, value in enumerate(values)]


def test_growth_is_told_from_warming_up_and_from_noise() -> None:
    (growing,) = trends(samples([30 + place for place in range(40)], "ingress MiB"))
    assert not growing.is_flat
    assert growing.per_hour == pytest.approx(60)
    (warming,) = trends(samples([30, 35, 38, 39, *[40.0] * 36], "ingress MiB"))
    assert warming.is_flat
    (noisy,) = trends(samples([40 + place % 2 for place in range(40)], "bookings"))
    assert noisy.is_flat
    (leaking,) = trends(samples([20 + place // 4 for place in range(40)], "control files"))
    assert not leaking.is_flat
    assert trends(samples([1, 2, 3], "bookings")) == []
