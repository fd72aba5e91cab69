"""What control hears of a worker."""

import os
import subprocess
import sys

from lmpool.core.block_pool import BlockPool
from lmpool.core.events import PeerJoined, PeerLost, Received
from lmpool.core.ids import SECOND, Nanos, StepNumber, Version
from lmpool.core.limits import REPORT_HASHES_MAX
from lmpool.core.messages.worker_control import (
    NOTHING_DONE,
    FullReport,
    Load,
    Report,
    ReportWanted,
    Totals,
    WorkerJoined,
)
from lmpool.core.prefix import HASH_BYTES, hash_at, split_chain
from lmpool.core.report import Reporter
from tests.core.worker_world import BASE, CONTROL, INGRESS, RATES, World, prompt_of


def reports(world: World) -> list[Report]:
    return [message for _, message in world.messages if isinstance(message, Report)]


def test_facts_come_first_on_every_link_and_to_control_everything() -> None:
    world = World(model_tokens_max=100)
    said: dict[object, list[object]] = {INGRESS: [], CONTROL: []}
    for peer, message in world.messages:
        said[peer].append(message)
    facts = WorkerJoined(BASE, 8, 64, 100, 64, 16, RATES)
    assert said[INGRESS] == [facts]
    assert said[CONTROL][0] == facts
    assert isinstance(said[CONTROL][1], FullReport)


def test_one_report_a_step_says_what_has_changed() -> None:
    world = World()
    submit = world.submit(1, prompt_of(100, 1), length=3)
    world.complete_step()
    first = reports(world)[-1]
    assert first.accepted == (submit.request,)
    assert (first.prefill_requests, first.prefill_tokens) == ((submit.request,), (36,))
    assert split_chain(first.added) == split_chain(submit.chain)[:8]
    assert (first.load.prefilling, first.load.prefilling_tokens, first.load.decoding) == (1, 36, 0)
    assert first.load.step_began_ns == world.now
    world.complete_step()
    second = reports(world)[-1]
    assert second.version == first.version + 1
    assert (second.prefill_tokens, second.accepted, second.ended) == ((0,), (), ())
    assert (second.load.decoding, second.load.decoding_context) == (1, 101)
    world.run(10)
    last = reports(world)[-1]
    assert last.ended == (submit.request,)
    assert last.totals == Totals(100, 0, 1, 3, 4, 0, 0)
    assert last.load.step_began_ns is None
    assert world.told_live == {}


def test_waiting_sequences_count_what_they_will_compute() -> None:
    """A sibling of what is being written, and one that finds half of its prompt cached."""
    world = World(step_tokens_max=16)
    world.submit(1, prompt_of(32, 1))
    world.run(10)
    world.submit(2, prompt_of(80, 2))
    world.complete_step()
    world.submit(3, [*prompt_of(80, 2), 1, 2, 3])
    assert world.worker.snapshot().waiting_tokens == 3
    world.submit(4, prompt_of(64, 1))
    assert world.worker.snapshot().waiting_tokens == 3 + 32
    world.submit(5, prompt_of(20, 5), choices=(0, 1, 2))
    assert world.worker.snapshot().waiting_tokens == 3 + 32 + 20 + 4 + 4
    world.run(40)


def test_a_full_report_has_everything_and_changes_go_on_from_it() -> None:
    world = World()
    world.submit(1, prompt_of(50, 1), length=30)
    world.complete_step()
    heard = world.feed(Received(CONTROL, ReportWanted()))
    (full,) = [message for message in heard if isinstance(message, FullReport)]
    assert (full.part, full.parts, len(full.requests), full.prefill_tokens) == (0, 1, 1, (0,))
    assert len(split_chain(full.hashes)) == 6
    count = len(reports(world))
    world.complete_step()
    assert len(reports(world)) == count, "a step that only decodes is no news"
    world.now = Nanos(world.now + world.settings.report_interval_ns)
    world.complete_step()
    after = reports(world)[-1]
    assert (after.version, after.added, after.accepted) == (full.version + 1, b"", ())
    world.run(60)
    world.assert_idle()


def test_a_full_report_comes_in_bounded_parts() -> None:
    count = REPORT_HASHES_MAX + 10
    pool = BlockPool(count)
    chain = b"".join(number.to_bytes(HASH_BYTES, "little") for number in range(count))
    table = pool.allocate(count)
    for position, block in enumerate(table):
        pool.publish(block, hash_at(chain, position), table[position - 1] if position else None, StepNumber(0))
    load = Load(0, 0, 0, 0, 0, 0, 0, 0, None, Nanos(0))
    parts = Reporter().everything(pool, {}, load, RATES, NOTHING_DONE)
    assert [(part.part, part.parts, part.version) for part in parts] == [(0, 2, 1), (1, 2, 1)]
    assert [len(part.hashes) // HASH_BYTES for part in parts] == [REPORT_HASHES_MAX, 10]
    assert b"".join(part.hashes for part in parts) == chain


def test_control_that_comes_back_hears_everything_again() -> None:
    world = World()
    world.feed(PeerLost(CONTROL))
    world.submit(1, prompt_of(50, 1), length=3)
    world.run(20)
    world.tick(SECOND)
    world.submit(2, prompt_of(50, 2), length=30)
    world.complete_step()
    said = len(reports(world))
    world.feed(PeerJoined(CONTROL))
    assert len(world.resident) == world.worker.snapshot().blocks.cached + 6
    assert list(world.told_live) == [world.submits[request].request for request in world.told_live]
    assert len(world.told_live) == 1
    world.run(60)
    assert len(reports(world)) > said
    world.assert_idle()


def test_versions_rise_by_one() -> None:
    world = World()
    for counter in range(5):
        world.submit(counter, prompt_of(30, counter))
        world.run(10)
    versions = [message.version for _, message in world.messages if isinstance(message, Report | FullReport)]
    assert versions == [Version(number) for number in range(1, len(versions) + 1)]


def test_a_question_by_somebody_else_is_stray() -> None:
    world = World()
    assert world.feed(Received(INGRESS, ReportWanted())) == []
    assert world.worker.snapshot().messages_stray == 1


def test_no_deadline_is_later_than_the_next_sign_of_life() -> None:
    world = World()
    assert world.worker.next_deadline() <= Nanos(world.now + world.settings.report_interval_ns)
    world.submit(1, prompt_of(5, 1), deadline_ns=Nanos(world.now + 5))
    assert world.worker.next_deadline() >= world.now


HISTORY = """
from random import Random
from lmpool.core.ids import MILLISECOND
from tests.core.worker_world import World, prompt_of, DRAWN

random = Random(5)
world = World(steps_in_flight_max=2, blocks=20, step_tokens_max=24, sequences_max=4)
for counter in range(120):
    prompt = prompt_of(random.randint(1, 60), random.randint(1, 3))
    world.submit(counter, prompt, choices=tuple(range(random.randint(1, 3))), length=9, sampling=DRAWN)
    if counter % 5 == 0:
        world.abort(counter - 1)
    for _ in range(random.randint(0, 4)):
        if world.runner.launched:
            world.complete_step()
    print(world.worker.digest().hex())
world.run(2000)
print(world.worker.digest().hex(), world.worker.snapshot())
"""


def test_b25_digests_do_not_depend_on_the_hash_seed() -> None:
    said = [
        subprocess.run(
            [sys.executable, "-c", HISTORY],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert len(set(said[0].splitlines())) > 100
