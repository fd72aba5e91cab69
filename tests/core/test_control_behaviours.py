"""What users of other routers report, by the numbers of `specs/routing.md`: it must not happen here."""

import attrs
import pytest

from lmpool.core.events import PeerJoined, PeerLost, Received
from lmpool.core.ids import MILLISECOND, SECOND, Epoch, Nanos, Peer, Rank, RequestId, Role
from lmpool.core.messages.ingress_control import Busy, RouteDecided, Unroutable
from lmpool.core.messages.worker_control import Load, ReportWanted
from lmpool.core.policies.marginal_time import COLD
from lmpool.core.prefix import ModelIdentity, extend_chain, namespace_base, namespace_digest, pack_tokens
from tests.core.plane import (
    BLOCK_SIZE,
    FACTS,
    IDLE,
    INGRESS,
    RATES,
    SETTINGS,
    Plane,
    chain,
    question,
    ready_plane,
    request,
)

DOCUMENT = chain(("document", 100))
PROMPT = 100 * BLOCK_SIZE + 7
DECODING = attrs.evolve(IDLE, decoding=4, decoding_context=2_000)


def test_r1_a_resumed_turn_goes_home_although_others_decode_there() -> None:
    plane = ready_plane(SETTINGS, DOCUMENT, b"")
    plane.report(0, load=DECODING)
    assert plane.route(1, DOCUMENT, PROMPT) == 0


def reused_share(policy: str) -> float:
    """Of the blocks of fifteen sessions with six turns each, while twelve requests decode at any time."""
    plane = ready_plane(attrs.evolve(SETTINGS, policy=policy), *[b""] * 4)
    running: list[tuple[int, int, int]] = []
    ready, asked = 0, 0

    def load(rank: int) -> Load:
        there = [blocks for _, where, blocks in running if where == rank]
        tokens = sum(there) * BLOCK_SIZE
        return attrs.evolve(IDLE, blocks_free=1_000 - sum(there), decoding=len(there), decoding_context=tokens)

    for counter in range(15 * 6):
        blocks = chain((f"session {counter % 15}", 8 * (counter // 15 + 1)))
        answer = plane.ask(question(counter, blocks, len(blocks) + 7))
        assert isinstance(answer, RouteDecided)
        ready, asked = ready + answer.ready_blocks, asked + len(blocks) // 16
        running.append((counter, answer.rank, len(blocks) // 16))
        plane.report(
            answer.rank,
            added=blocks[answer.ready_blocks * 16 :],
            accepted=(request(counter),),
            prefill={request(counter): 0},
            load=load(answer.rank),
        )
        if len(running) > 12:
            ended, rank, _ = running.pop(0)
            plane.report(rank, ended=(request(ended),), load=load(rank))
        plane.pass_time(20 * MILLISECOND)
    return ready / asked


def test_r2_the_defaults_reuse_what_the_longest_prefix_does() -> None:
    share = reused_share("default")
    assert share > 0.98 * reused_share("longest-prefix") > 0.69
    assert share > reused_share("dynamo") > 3 * reused_share("round-robin")


def test_r4_running_work_counts_not_only_what_waits() -> None:
    plane = ready_plane(SETTINGS, b"", b"")
    plane.report(0, load=attrs.evolve(IDLE, decoding=20, decoding_context=20_000))
    assert [plane.route(counter, chain((f"{counter}", 20)), 330) for counter in range(3)].count(1) == 3


def test_r4_one_hot_prefix_spreads_over_all_ranks_once_its_holder_is_busy() -> None:
    plane = ready_plane(SETTINGS, DOCUMENT, b"", b"", b"")
    used = {plane.route(counter, DOCUMENT + chain((f"own {counter}", 20)), PROMPT + 320) for counter in range(64)}
    assert used == {0, 1, 2, 3}


def test_r5_r6_one_hot_rank_does_not_end_affinity_elsewhere() -> None:
    other = chain(("other", 100))
    plane = ready_plane(SETTINGS, DOCUMENT, other, b"")
    for counter in range(20):
        plane.ask(attrs.evolve(question(counter, b"", 3_000), excluded=(Rank(1), Rank(2))))
    assert plane.route(50, other, PROMPT) == 1
    longer = chain(("document", 100), ("more", 200))
    assert plane.route(51, longer, PROMPT + 200 * BLOCK_SIZE) != 0


def test_a_short_rest_goes_home_past_long_prompts_and_a_long_one_does_not() -> None:
    """A replica gives short prompts room beside long ones, so they need not fear its queue."""
    plane = ready_plane(SETTINGS, DOCUMENT, b"")
    for counter in range(20):
        plane.ask(attrs.evolve(question(counter, b"", 3_000), excluded=(Rank(1),)))
    assert plane.route(50, DOCUMENT, PROMPT) == 0
    assert plane.route(51, chain(("document", 10), ("more", 90)), PROMPT) == 1


def test_r7_a_cold_request_goes_to_the_least_wait_not_to_the_smallest_cache() -> None:
    plane = ready_plane(SETTINGS, chain(("big", 900)), b"")
    plane.report(1, load=attrs.evolve(DECODING, step_began_ns=Nanos(0), step_cost_ns=Nanos(900 * MILLISECOND)))
    assert plane.route(1, DOCUMENT, PROMPT) == 0


def test_r9_without_overlap_requests_are_balanced() -> None:
    plane = ready_plane(SETTINGS, *[b""] * 5)
    used = [plane.route(counter, chain((f"{counter}", 20)), 325) for counter in range(50)]
    assert [used.count(rank) for rank in range(5)] == [10] * 5


def test_r10_a_session_leaves_a_rank_without_room() -> None:
    session = chain(("session", 40))
    plane = ready_plane(SETTINGS, session, b"")
    crowded = attrs.evolve(IDLE, decoding=4, decoding_context=4 * 800)
    plane.report(0, load=crowded)
    assert plane.route(1, session, 650) == 0
    plane.end(1, 0)
    full = attrs.evolve(crowded, blocks_free=0, decoding_context=4 * 4_000)
    plane.report(0, load=full)
    assert plane.route(2, session, 650) == 1


def test_r11_a_long_session_is_not_moved_for_a_little_wait() -> None:
    plane = ready_plane(SETTINGS, chain(("session", 500)), b"")
    plane.report(0, load=attrs.evolve(IDLE, step_began_ns=Nanos(0), step_cost_ns=Nanos(300 * MILLISECOND)))
    assert plane.route(1, chain(("session", 500)), 8_050) == 0  # 800 ms of prefill against 300 ms


def test_r12_a_rank_that_gets_little_is_not_taken_for_idle() -> None:
    plane = ready_plane(SETTINGS, b"", b"")
    plane.ask(attrs.evolve(question(1, b"", 6_000), excluded=(Rank(1),)))  # one request, long ago, still there
    plane.report(0, accepted=(request(1),), prefill={request(1): 6_000})
    plane.report(1)
    assert plane.route(2, DOCUMENT, PROMPT) == 1


def test_r13_the_wait_for_a_prefix_has_a_bound() -> None:
    plane = ready_plane(attrs.evolve(SETTINGS, wait_max_ns=SECOND), DOCUMENT, b"")
    for counter in range(40):
        answer = plane.ask(question(counter, DOCUMENT + chain((f"{counter}", 60)), PROMPT + 960))
        if isinstance(answer, Busy):
            break
    else:
        raise AssertionError("never busy")
    assert min(candidate.terms[0] for candidate in plane.decision().candidates) > SECOND


def test_r14_many_short_requests_count_although_they_compute_little() -> None:
    plane = ready_plane(SETTINGS, b"", b"")
    used = [plane.route(counter, b"", 3) for counter in range(20)]
    assert used.count(0) == used.count(1)


def test_r15_r16_r19_ties_go_round_from_the_first_request_on() -> None:
    plane = ready_plane(SETTINGS, b"", b"", b"", b"")
    for counter in range(8):  # one after the other: each has ended before the next
        rank = plane.route(counter, chain((f"{counter}", 4)), 70)
        assert rank == counter % 4
        plane.report(rank, accepted=(request(counter),), ended=(request(counter),))


def test_r17_r18_a_burst_sees_its_own_bookings() -> None:
    plane = ready_plane(SETTINGS, b"", b"", b"", b"")
    used = [plane.route(counter, chain((f"{counter}", 30)), 485) for counter in range(40)]
    assert [used.count(rank) for rank in range(4)] == [10] * 4


def test_r18_two_ingresses_see_each_others_bookings() -> None:
    plane = ready_plane(SETTINGS, b"", b"", b"", b"")
    other = Peer(Role.INGRESS, Rank(1), Epoch(2))
    plane.feed(PeerJoined(other))
    used = [0] * 4
    for counter in range(20):
        for peer in (INGRESS, other):
            asked = question(counter, chain((f"{peer.rank} {counter}", 30)), 485)
            (answer,) = plane.feed(Received(peer, attrs.evolve(asked, request=RequestId(peer.epoch, counter))))
            assert isinstance(answer, RouteDecided)
            used[answer.rank] += 1
    assert used == [10] * 4


def test_r20_siblings_of_a_burst_compute_their_prefix_once_per_rank_used() -> None:
    plane = ready_plane(SETTINGS, *[b""] * 8)
    used = {plane.route(counter, DOCUMENT + chain((f"{counter}", 1)), PROMPT + 16) for counter in range(16)}
    assert sum(rank.prefill_tokens for rank in plane.state().ranks) == 16 * (7 + 16) + len(used) * 100 * BLOCK_SIZE
    for candidate in plane.decision().candidates:
        assert candidate.ready_blocks == 0
        assert candidate.arriving_blocks == (100 if candidate.rank in used else 0)


def test_r20_siblings_under_load_stay_where_the_first_went() -> None:
    plane = ready_plane(SETTINGS, b"", b"")
    for counter in range(600):  # 20 a second, 80 % busy
        rank = plane.route(counter, chain((f"{counter}", 50)), 801)
        plane.report(rank, accepted=(request(counter),), ended=(request(counter),))
        plane.pass_time(50 * MILLISECOND)
    used = {plane.route(1_000 + counter, DOCUMENT + chain((f"{counter}", 1)), PROMPT + 16) for counter in range(4)}
    assert len(used) == 1


def test_r23_a_rank_whose_cache_is_unknown_is_no_silent_tie() -> None:
    plane = Plane(SETTINGS)
    plane.connect()
    plane.bring(0, DOCUMENT)
    plane.join(1, 1, FACTS)
    plane.pass_time(400 * MILLISECOND)
    assert plane.route(1, DOCUMENT, PROMPT) == 0
    assert plane.decision().candidates[1].reason == "joining"
    assert plane.machine.snapshot().why_not == ("", "joining")


def test_r24_r27_a_restart_in_place_keeps_no_dead_blocks_and_loses_no_new_ones() -> None:
    plane = ready_plane(SETTINGS, DOCUMENT, b"")
    plane.join(0, 2, FACTS)  # the loss of the old link is noticed later, its versions start at 1 again
    plane.report_fully(0, 1, b"", {})
    plane.report(0, added=chain(("new", 9)))
    assert plane.state().ranks[0].resident_hashes == 9
    answer = plane.ask(question(1, DOCUMENT, PROMPT))
    assert isinstance(answer, RouteDecided)
    assert answer.ready_blocks == 0


def test_r25_late_messages_of_a_life_that_is_over_change_nothing() -> None:
    plane = ready_plane(SETTINGS, b"", b"")
    plane.lose(0)
    before = plane.state().stale_dropped
    plane.report(0, added=DOCUMENT)
    assert plane.state().stale_dropped == before + 1
    plane.join(0, 2, FACTS)
    plane.epochs[0] = 1
    plane.report(0, added=DOCUMENT)
    assert plane.state().stale_dropped == before + 2
    assert plane.state().page_table_hashes == 0


def test_r26_a_cleared_cache_is_gone_with_the_next_report() -> None:
    plane = ready_plane(SETTINGS, DOCUMENT, b"")
    plane.report(0, removed=DOCUMENT)
    plane.route(1, DOCUMENT, PROMPT)
    assert plane.decision().reason == COLD


def test_r28_a_gap_is_counted_and_repaired() -> None:
    plane = ready_plane(SETTINGS, b"")
    plane.versions[0] += 1
    (message,) = plane.report(0, added=DOCUMENT)
    assert isinstance(message, ReportWanted)
    assert (plane.state().resyncs, plane.state().ranks[0].resident_hashes) == (1, 0)


def test_r30_a_removal_of_what_was_never_stored_is_harmless() -> None:
    plane = ready_plane(SETTINGS, b"", DOCUMENT)
    plane.report(0, removed=DOCUMENT)
    assert [rank.resident_hashes for rank in plane.state().ranks] == [0, 100]


def test_r31_a_rank_that_says_nothing_is_noticed_within_seconds_and_gets_nothing_more() -> None:
    plane = ready_plane(SETTINGS, DOCUMENT, b"")
    assert plane.route(1, DOCUMENT, PROMPT) == 0
    for _ in range(3):
        plane.pass_time(SECOND)
        plane.report(1)
    assert plane.machine.snapshot().why_not == ("suspect", "")
    assert plane.route(2, DOCUMENT, PROMPT) == 1


def test_r35_only_a_chain_from_the_first_block_on_matches() -> None:
    plane = ready_plane(SETTINGS, chain(("greeting", 1), ("document", 50)), b"")
    plane.route(1, chain(("document", 51)), 900)
    assert [candidate.ready_blocks for candidate in plane.decision().candidates] == [0, 0]


def test_r36_generated_blocks_count_like_any_other() -> None:
    plane = ready_plane(SETTINGS, b"", DOCUMENT)
    answer_blocks = chain(("document", 100), ("answer", 12))
    plane.report(1, added=answer_blocks[len(DOCUMENT) :])
    answer = plane.ask(question(1, answer_blocks, 112 * BLOCK_SIZE + 1))
    assert isinstance(answer, RouteDecided)
    assert (answer.rank, answer.ready_blocks) == (1, 112)


KEYS = [(tenant, adapter, salt) for tenant in ("", "red") for adapter in (None, "red") for salt in (None, "red")]
BASE = namespace_base(ModelIdentity("revision", "float32", "split-heads", BLOCK_SIZE))
TOKENS = pack_tokens(range(10 * BLOCK_SIZE))


def keyed(tenant: str, adapter: str | None, salt: str | None) -> bytes:
    """The chain that ingress and worker compute of one prompt under such a key."""
    return extend_chain(namespace_digest(BASE, adapter, tenant, salt), TOKENS, BLOCK_SIZE)


@pytest.mark.parametrize("key", KEYS)
def test_r37_r38_r39_a_prompt_matches_under_its_own_adapter_and_salt_and_under_no_other(
    key: tuple[str, str | None, str | None],
) -> None:
    plane = ready_plane(SETTINGS, b"", keyed(*key))
    for counter, other in enumerate(KEYS):
        answer = plane.ask(question(counter, keyed(*other), 10 * BLOCK_SIZE + 1))
        assert isinstance(answer, RouteDecided)
        ready = [candidate.ready_blocks for candidate in plane.decision().candidates]
        assert ready == [0, 10 if other == key else 0]


def test_r40_the_key_of_a_fixed_prompt_never_changes() -> None:
    assert keyed("acme", "red", "blue")[-16:].hex() == "add8a5febe373d6d6cc473518e6a12c7"


def test_r41_chats_of_one_beginning_are_told_apart_by_what_follows() -> None:
    alice, bob = chain(("system and greeting", 20), ("alice", 80)), chain(("system and greeting", 20), ("bob", 80))
    plane = ready_plane(SETTINGS, alice, bob)
    assert [plane.route(1, bob, PROMPT), plane.route(2, alice, PROMPT)] == [1, 0]
    assert [candidate.ready_blocks for candidate in plane.decision().candidates] == [100, 20]


def test_r43_r46_a_report_does_not_erase_bookings_that_it_does_not_know() -> None:
    plane = ready_plane(SETTINGS, b"", b"")
    first = plane.route(1, b"", 4_000)
    plane.report(first)  # an idle snapshot, taken before the request got there
    assert plane.route(2, b"", 4_000) == 1 - first
    assert [rank.prefill_tokens for rank in plane.state().ranks] == [4_000, 4_000]


def test_r50_what_a_worker_no_longer_has_is_settled_by_a_full_report() -> None:
    plane = ready_plane(SETTINGS, b"")
    for counter in range(5):
        plane.route(counter, b"", 100)
    plane.report(0, accepted=tuple(request(counter) for counter in range(5)))
    plane.versions[0] += 3  # the reports that named their ends are lost
    plane.report(0)
    plane.report_fully(0, 9, b"", {request(3): 0})
    state = plane.state()
    assert (state.bookings, state.ranks[0].booked, state.ranks[0].prefill_tokens) == (1, 1, 0)


def test_r51_a_dead_rank_is_never_chosen_for_its_prefix() -> None:
    plane = ready_plane(SETTINGS, DOCUMENT, b"")
    plane.lose(0)
    assert plane.route(1, DOCUMENT, PROMPT) == 1
    plane.lose(1)
    assert isinstance(plane.ask(question(2, DOCUMENT, PROMPT)), Unroutable)


def test_r52_a_rank_that_failed_the_request_is_left_out_of_its_next_try() -> None:
    plane = ready_plane(SETTINGS, DOCUMENT, b"")
    assert plane.route(1, DOCUMENT, PROMPT) == 0
    again = attrs.evolve(question(1, DOCUMENT, PROMPT), attempt=1, excluded=(Rank(0),))
    answer = plane.ask(again)
    assert isinstance(answer, RouteDecided)
    assert answer.rank == 1
    assert plane.state().bookings == 1


def test_r55_a_rank_that_is_gone_is_neither_waited_for_nor_asked() -> None:
    plane = Plane(attrs.evolve(SETTINGS, replicas=8))
    plane.connect()
    plane.bring(0, DOCUMENT)
    for rank in range(1, 8):
        plane.join(rank, 1, FACTS)
        plane.lose(rank)
    plane.feed(Received(INGRESS, question(1, DOCUMENT, PROMPT)))
    messages = plane.pass_time(300 * MILLISECOND)
    assert [message.rank for message in messages if isinstance(message, RouteDecided)] == [0]
    plane.pass_time(10 * SECOND)
    assert plane.wanted() == 0


def test_r56_a_new_control_serves_cold_and_fills_in_behind() -> None:
    plane = Plane(SETTINGS)
    plane.connect()
    plane.bring(0, b"")
    plane.join(1, 1, FACTS)  # its full report is late
    plane.feed(Received(INGRESS, question(1, DOCUMENT, PROMPT)))
    (answer,) = [message for message in plane.pass_time(300 * MILLISECOND) if isinstance(message, RouteDecided)]
    assert answer.rank == 0
    plane.report_fully(1, 1, DOCUMENT + chain(("more", 1)), {})
    assert plane.route(2, DOCUMENT, PROMPT) == 1


def test_r57_home_follows_from_what_is_held_not_from_a_private_map() -> None:
    first, second = ready_plane(SETTINGS, b"", DOCUMENT), ready_plane(SETTINGS, b"", DOCUMENT)
    assert first.route(1, DOCUMENT, PROMPT) == second.route(9, DOCUMENT, PROMPT) == 1


def test_r59_one_owner_of_load_for_all_ingresses() -> None:
    plane = ready_plane(SETTINGS, b"", b"")
    assert plane.route(1, b"", 4_000) == 0
    plane.feed(PeerLost(INGRESS))
    plane.connect()
    assert plane.state().bookings == 0
    assert plane.route(2, b"", 4_000) == 1  # the tie goes round


def test_r61_no_replica_is_an_answer_of_its_own() -> None:
    plane = Plane(SETTINGS)
    plane.connect()
    plane.pass_time(300 * MILLISECOND)
    answer = plane.ask(question(1, b"", 10))
    assert isinstance(answer, Unroutable)
    assert [candidate.reason for candidate in plane.decision().candidates] == ["down", "down"]


def test_slow_ranks_get_less_without_a_term_of_their_own() -> None:
    plane = Plane(SETTINGS)
    plane.connect()
    plane.bring(0, b"")
    slow = attrs.evolve(RATES, prefill=3 * RATES.prefill, step=3 * RATES.step)
    plane.join(1, 1, attrs.evolve(FACTS, rates=slow))
    plane.report_fully(1, 1, b"", {})
    used = [plane.route(counter, chain((f"{counter}", 60)), 970) for counter in range(40)]
    assert 22 <= used.count(0) <= 34
