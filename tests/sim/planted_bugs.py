"""Bugs that somebody could write any day, planted one at a time: the swarm has to find each.

`python -m tests.sim.planted_bugs` (also `tools/sim --planted`) searches the first seed of each anew.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from lmpool.core import execution, membership, roster, step
from lmpool.core.block_pool import BlockPool
from lmpool.core.booking import Booking, Placement
from lmpool.core.deadlines import Deadlines
from lmpool.core.effects import DeliverToken
from lmpool.core.execution import Execution
from lmpool.core.fleet import Lineup
from lmpool.core.ids import BlockId, Nanos, Peer
from lmpool.core.ingress import Ingress
from lmpool.core.ledger import Ledger
from lmpool.core.linked_workers import LinkedWorkers
from lmpool.core.live_request import LiveRequest
from lmpool.core.messages.ingress_control import Busy, RouteAsked
from lmpool.core.open_request import OpenRequest, Submitted
from lmpool.core.page_table import SHARDS, PageTable
from lmpool.core.prefix import hash_at
from lmpool.core.reclaim_order import ReclaimOrder
from lmpool.core.report import Reporter
from lmpool.core.roster import Roster
from lmpool.core.route import RETRY_AFTER_MIN_NS, Router, Ruling
from lmpool.core.sampling import uniform
from lmpool.core.schedule import Schedule
from lmpool.core.search import Search
from lmpool.core.sequence import Sequence
from lmpool.core.step import PlannedRow
from lmpool.core.worker import Worker
from lmpool.sim.swarm.hunt import run_seeds
from lmpool.sim.swarm.run import run_seed
from tests.sim import planted_transfer_bugs as transfers

SEEDS_MAX = 500
Patch = pytest.MonkeyPatch
ROOT = Path(__file__).parents[2]


@attrs.frozen
class PlantedBug:
    """`plant` has the bug as its documentation."""

    plant: Callable[[Patch], None]
    seed: int
    """The first that finds it."""
    betrayal: str
    """What the violation says, at least."""

    @property
    def name(self) -> str:
        return self.plant.__name__


def lost_release(patch: Patch) -> None:
    """The ingress withdraws a booking, and control keeps it."""
    patch.setattr(Ledger, "abandon", lambda *_: False)


def old_epoch_accepted(patch: Patch) -> None:
    """What a dead life of a rank still says counts."""

    def knows(self: Roster, peer: Peer) -> bool:
        return self._members[peer.rank].peer is not None

    patch.setattr(Roster, "knows", knows)


def published_before_its_step(patch: Patch) -> None:
    """A block is resident as soon as it is planned."""
    publish = Schedule.publish

    def eager(self: Schedule, sequence: Sequence) -> None:
        computed, sequence.computed = sequence.computed, sequence.planned
        publish(self, sequence)
        sequence.computed = computed

    patch.setattr(Schedule, "publish", eager)


def order_of_a_set(patch: Patch) -> None:
    """Without control a request goes to the first of a set of workers."""
    takers = LinkedWorkers.takers

    def any_order(self: LinkedWorkers, request: OpenRequest) -> list[Peer]:
        peers = {str(peer): peer for peer in takers(self, request)}
        return [peers[name] for name in set(peers)]

    patch.setattr(LinkedWorkers, "takers", any_order)


def double_booking_not_counted(patch: Patch) -> None:
    """A second request with the same chain on a rank is not booked."""
    book = Ledger.book

    def once(self: Ledger, placement: Placement, deadline: Nanos) -> None:
        chains = self._arriving[placement.rank].values()
        if not placement.chain or placement.chain not in chains:
            book(self, placement, deadline)

    patch.setattr(Ledger, "book", once)


def credit_outlives_its_writer(patch: Patch) -> None:
    """Who counts on blocks of another booking counts on them after that has gone."""
    patch.setattr(Ledger, "_withdraw", lambda *_: None)


def parent_may_be_reclaimed(patch: Patch) -> None:
    """A block stays on offer when another stands on it."""
    patch.setattr(ReclaimOrder, "withdraw", lambda *_: None)


def released_block_is_not_offered(patch: Patch) -> None:
    """Now and then a cached block cannot be reclaimed any more."""
    offer = ReclaimOrder.offer

    def forgetful(self: ReclaimOrder, block: BlockId) -> None:
        if block % 8 != 5:
            offer(self, block)

    patch.setattr(ReclaimOrder, "offer", forgetful)


def marks_are_never_swept(patch: Patch) -> None:
    """What a lost rank held stays in the page table."""

    def sweep(self: PageTable, hashes_max: int) -> None:
        self._shard = (self._shard + hashes_max) % SHARDS
        self._clearing, self._retired = self._retired, 0

    patch.setattr(PageTable, "sweep", sweep)


def removal_is_not_reported(patch: Patch) -> None:
    """When blocks come and go between two reports, only those that came are told."""
    take_changes = BlockPool.take_changes

    def additions(self: BlockPool) -> tuple[bytes, bytes]:
        added, removed = take_changes(self)
        return added, b"" if added else removed

    patch.setattr(BlockPool, "take_changes", additions)


def token_delivered_twice(patch: Patch) -> None:
    """A client gets the last token again when its worker was lost."""
    begin_again = Search.begin_again

    def repeat(self: Search, now: Nanos, request: OpenRequest) -> None:
        choice = request.choices[0]
        if choice.is_open and choice.output:
            last = DeliverToken(request.id, 0, len(choice.output) - 1, choice.output[-1], None, None, False)
            self._requests.put(last)
        begin_again(self, now, request)

    patch.setattr(Search, "begin_again", repeat)


def forgotten_at_a_lost_link(patch: Patch) -> None:
    """A request that its worker had not begun stays with it when the link is lost."""

    def lose(self: Ingress, worker: Peer) -> None:
        for request in self._requests.at(worker):
            if not isinstance(request.phase, Submitted):
                lose_requests(self, worker)

    lose_requests = Ingress._lose_requests
    patch.setattr(Ingress, "_lose_requests", lose)


def deadline_dropped(patch: Patch) -> None:
    """A deadline that is earlier than all others is not kept."""
    keep = Deadlines.set

    def late(self: Deadlines, request: Any, deadline_ns: Nanos) -> None:
        earliest = self.earliest()
        if earliest is None or deadline_ns >= earliest:
            keep(self, request, deadline_ns)

    patch.setattr(Deadlines, "set", late)


def preempted_keeps_its_blocks(patch: Patch) -> None:
    """A sequence that is preempted forgets its blocks instead of giving them back."""
    preempt = Execution._preempt

    def forget(self: Execution, sequence: Sequence) -> None:
        sequence.table = ()
        preempt(self, sequence)

    patch.setattr(Execution, "_preempt", forget)


def lost_ingress_is_served_on(patch: Patch) -> None:
    """A worker goes on with the requests of an ingress that is gone."""

    def lose(self: Worker, peer: Peer) -> None:
        self._peers.pop(peer, None)
        if peer == self._control:
            self._control = None

    patch.setattr(Worker, "_lose", lose)


def lost_step_counts(patch: Patch) -> None:
    """After a failed step, what the next one computed from it counts."""
    lose_row = Execution._lose_row

    def stay(self: Execution, row: PlannedRow) -> None:
        life = row.sequence.life
        lose_row(self, row)
        row.sequence.life = life

    patch.setattr(Execution, "_lose_row", stay)


def silent_rank_is_routed_to(patch: Patch) -> None:
    """Nobody looks how long a rank has said nothing."""
    patch.setattr(Roster, "tick", lambda *_: [])


def shared_block_is_written(patch: Patch) -> None:
    """Where the whole prompt is cached, its last token is written again into the block of all."""
    plan_prefill = step.plan_prefill

    def write(*arguments: Any) -> Any:
        row, memory = plan_prefill(*arguments)
        return row._replace(writes=True), memory

    patch.setattr(execution, "plan_prefill", write)


def chance_shifts_after_preemption(patch: Patch) -> None:
    """A sequence that was preempted draws its tokens with the chances of the next ones."""

    def shifted(request: LiveRequest, sequence: Sequence, output_index: int) -> float:
        index = output_index + (sequence.preemptions > 0)
        return uniform(request.submit.sampling.seed, sequence.id.choice, index)

    patch.setattr(step, "_chance", shifted)


def slot_never_comes_back(patch: Patch) -> None:
    """A sequence that leaves while its prefill is not complete takes its slot with it."""
    leave = Schedule.leave

    def keep(self: Schedule, sequence: Sequence) -> None:
        leave(self, sequence)
        if sequence.computed < sequence.prefill_end and len(self._slots) > 1:
            self._slots.pop()

    patch.setattr(Schedule, "leave", keep)


def waiting_question_books_twice(patch: Patch) -> None:
    """Control routes a question that waited, although a report has named its request meanwhile."""
    ask_again = Ledger.ask_again

    def only_booked(self: Ledger, request: Any) -> None:
        booking: Booking | None = self.booking(request)
        if booking is not None and booking.placement.chain:
            ask_again(self, request)

    patch.setattr(Ledger, "ask_again", only_booked)


def restored_booking_is_lost(patch: Patch) -> None:
    """When a rank links, bookings that an ingress has offered for this very life end as well."""
    lose_rank = Ledger.lose_rank
    patch.setattr(Ledger, "lose_rank", lambda self, rank, _: lose_rank(self, rank, None))


def old_life_links_last(patch: Patch) -> None:
    """The handshake of a dead life that is read late replaces the living one."""
    patch.setattr(roster, "is_stale", lambda *_: False)
    patch.setattr(membership, "is_stale", lambda *_: False)


def departed_sequence_adopts(patch: Patch) -> None:
    """A sequence that has left gives up a block of its own for a resident one, and so gives it back twice."""

    def publish(self: Schedule, sequence: Sequence) -> None:
        size = self._block_size
        complete = min(sequence.computed, len(sequence.history)) // size
        sequence.extend_chain(size)
        for position in range(sequence.published, complete):
            digest, table = hash_at(sequence.chain, position), sequence.table
            parent = table[position - 1] if position else None
            kept = self._pool.publish(table[position], digest, parent, sequence.last_step)
            sequence.table = (*table[:position], kept, *table[position + 1 :])
            sequence.published = position + 1
            self._writers.pop(digest, None)

    patch.setattr(Schedule, "publish", publish)


def end_outlives_a_new_attempt(patch: Patch) -> None:
    """A report says that a request has ended, although a newer attempt of it has come since."""

    def note_accepted(self: Reporter, request: Any) -> None:
        self._accepted[request] = None

    patch.setattr(Reporter, "note_accepted", note_accepted)


def refused_booking_is_not_withdrawn(patch: Patch) -> None:
    """The ingress gives a request up and does not tell control."""
    patch.setattr(Search, "withdraw", lambda *_: None)


def resumed_choices_are_renumbered(patch: Patch) -> None:
    """Where one choice has ended before a resume, the others draw the chances of their neighbours."""

    def renumbered(request: LiveRequest, sequence: Sequence, output_index: int) -> float:
        number = request.submit.choices.index(sequence.id.choice)
        return uniform(request.submit.sampling.seed, number, output_index)

    patch.setattr(step, "_chance", renumbered)


def sweep_spares_a_shard(patch: Patch) -> None:
    """A sweep passes over one shard of the page table."""
    sweep_shard = PageTable._sweep_shard

    def spare(self: PageTable) -> int:
        return 0 if self._shard == 77 else sweep_shard(self)

    patch.setattr(PageTable, "_sweep_shard", spare)


def drain_is_not_told_to_new_links(patch: Patch) -> None:
    """Who links to a worker that drains already does not hear of it."""
    join = Worker._join

    def keep_quiet(self: Worker, peer: Peer) -> None:
        is_draining, self._is_draining = self._is_draining, False
        join(self, peer)
        self._is_draining = is_draining

    patch.setattr(Worker, "_join", keep_quiet)


def excluded_is_busy(patch: Patch) -> None:
    """Control takes a request that excludes every rank for one that has to wait too long."""
    turn_away = Router._turn_away

    def say_busy(self: Router, now: Nanos, asked: RouteAsked, lineup: Lineup, *why: Any) -> Ruling:
        ruling = turn_away(self, now, asked, lineup, *why)
        if lineup.eligible:
            ruling.answer = Busy(asked.request, asked.attempt, RETRY_AFTER_MIN_NS)
        return ruling

    patch.setattr(Router, "_turn_away", say_busy)


PLANTED_BUGS = (
    PlantedBug(lost_release, 0, "bookings, and there should be"),
    PlantedBug(old_epoch_accepted, 4, ""),
    PlantedBug(published_before_its_step, 0, "writes it"),
    PlantedBug(double_booking_not_counted, 0, "bookings, and there should be"),
    PlantedBug(credit_outlives_its_writer, 0, "which is gone"),
    PlantedBug(parent_may_be_reclaimed, 0, ""),
    PlantedBug(released_block_is_not_offered, 0, ""),
    PlantedBug(marks_are_never_swept, 1, "marks"),
    PlantedBug(removal_is_not_reported, 1, ""),
    PlantedBug(token_delivered_twice, 1, "after"),
    PlantedBug(forgotten_at_a_lost_link, 4, "whose link is gone"),
    PlantedBug(deadline_dropped, 0, "deadline"),
    PlantedBug(preempted_keeps_its_blocks, 11, "pins"),
    PlantedBug(lost_ingress_is_served_on, 0, "whose link is gone"),
    PlantedBug(lost_step_counts, 0, "instead of"),
    PlantedBug(silent_rank_is_routed_to, 0, ""),
    PlantedBug(shared_block_is_written, 0, "writes it"),
    PlantedBug(chance_shifts_after_preemption, 1, "instead of"),
    PlantedBug(slot_never_comes_back, 0, "slot"),
    PlantedBug(waiting_question_books_twice, 1, "booking"),
    PlantedBug(restored_booking_is_lost, 1, "bookings, and there should be"),
    PlantedBug(old_life_links_last, 36, ""),
    PlantedBug(departed_sequence_adopts, 9, ""),
    PlantedBug(end_outlives_a_new_attempt, 1, "report tells of other requests"),
    PlantedBug(refused_booking_is_not_withdrawn, 0, "nobody has it there"),
    PlantedBug(resumed_choices_are_renumbered, 11, "instead of"),
    PlantedBug(sweep_spares_a_shard, 47, "hashes of rank"),
    PlantedBug(drain_is_not_told_to_new_links, 27, "somebody does not know"),
    PlantedBug(excluded_is_busy, 1, "nobody who could be"),
    PlantedBug(transfers.published_without_confirmation, 0, "not confirmed"),
    PlantedBug(transfers.copied_before_it_is, 0, "the driver still writes"),
    PlantedBug(transfers.confirmed_after_letting_go, 60, "was not held throughout"),
    PlantedBug(transfers.aborted_copy_frees_at_once, 0, "writes it"),
    PlantedBug(transfers.sender_lets_go_at_once, 0, "is sent"),
    PlantedBug(transfers.aborting_for_ever, 0, "is off"),
    PlantedBug(transfers.released_twice, 0, "may touch it"),
    PlantedBug(transfers.failed_copy_is_resident, 22, "instead of"),
    PlantedBug(transfers.side_without_deadline, 0, "outlives its deadline here"),
    PlantedBug(transfers.plan_without_deadline, 0, "outlives its deadline"),
    PlantedBug(transfers.abort_spares_who_has_not_answered, 0, "control is done"),
    PlantedBug(transfers.pins_of_a_source_are_lost, 0, "pins"),
    PlantedBug(transfers.move_frees_when_it_is_off, 0, "before it is published"),
    PlantedBug(transfers.waiter_is_not_told_of_an_end, 9, "waits for a transfer that is over"),
    PlantedBug(transfers.waiter_without_a_moment, 7, "waits too long"),
    PlantedBug(transfers.woken_for_nothing, 9, "has ended, and waits"),
    PlantedBug(transfers.lease_for_ever, 0, "outlives its deadline"),
    PlantedBug(transfers.blocks_arrive_in_another_order, 13, "instead of"),
    PlantedBug(transfers.nobody_ends_with_its_control, 1, "control is done"),
    PlantedBug(transfers.busy_rank_takes_another, 0, "ranks"),
    PlantedBug(transfers.planning_hides_renewed_views, 7, "lineup"),
    PlantedBug(transfers.promised_more_than_comes, 13, "brings other blocks"),
    PlantedBug(transfers.joined_on_the_way_elsewhere, 0, "goes elsewhere"),
)
ORDER_BUG = PlantedBug(order_of_a_set, 1, "")
"""Breaks no law of one run: two runs under different hash seeds differ."""


def digest_under(hash_seed: str, seed: int, *, planted: bool) -> str:
    """Of a run in an interpreter of its own."""
    command = [sys.executable, "-m", "tests.sim.planted_bugs", "--digest", str(seed)]
    surroundings = {**os.environ, "PYTHONHASHSEED": hash_seed}
    answer = subprocess.run(
        [*command, *(["--with-order-bug"] if planted else [])],
        cwd=ROOT,
        env=surroundings,
        capture_output=True,
        text=True,
        check=True,
    )
    return answer.stdout


def first_failing(bug: PlantedBug, jobs: int) -> tuple[int, str] | None:
    with Patch.context() as patch:
        bug.plant(patch)
        for result in run_seeds(range(SEEDS_MAX), jobs):
            if result.violation:
                return result.seed, result.violation
    return None


def first_different() -> int | None:
    for seed in range(SEEDS_MAX):
        if digest_under("1", seed, planted=True) != digest_under("2", seed, planted=True):
            return seed
    return None


def search(names: list[str], jobs: int) -> Iterator[str]:
    for bug in PLANTED_BUGS:
        if not names or bug.name in names:
            found = first_failing(bug, jobs)
            yield f"{bug.name}: " + ("NOT FOUND" if found is None else f"seed {found[0]}, {found[1]}")
    if not names or ORDER_BUG.name in names:
        seed = first_different()
        yield f"{ORDER_BUG.name}: " + ("NOT FOUND" if seed is None else f"seed {seed}, digests differ")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/sim --planted", description=__doc__)
    parser.add_argument("names", nargs="*", help="bugs (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="J")
    parser.add_argument("--digest", type=int, metavar="SEED", help="print the digest of one seed, and that is all")
    parser.add_argument("--with-order-bug", action="store_true", help="with --digest: decisions by the order of a set")
    options = parser.parse_args()
    if options.digest is not None:
        with Patch.context() as patch:
            if options.with_order_bug:
                order_of_a_set(patch)
            sys.stdout.write(run_seed(options.digest).digest)
        return 0
    code = 0
    for line in search(options.names, options.jobs):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        code |= "NOT FOUND" in line
    return code


if __name__ == "__main__":
    sys.exit(main())
