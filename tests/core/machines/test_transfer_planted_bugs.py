"""Bugs that others had, planted one at a time: the random histories of transfers must find each."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from lmpool.core.block_pool import BlockPool
from lmpool.core.ids import Nanos, Peer, StepNumber
from lmpool.core.messages.transfer import PrepareSource, TransferAnswer
from lmpool.core.transfer.exchange import Exchange
from lmpool.core.transfer.life import (
    SOURCE_TRANSITIONS,
    TARGET_TRANSITIONS,
    TRANSFER_TRANSITIONS,
    SourceEvent,
    SourceState,
    TargetEvent,
    TargetState,
    TransferEvent,
    TransferState,
)
from lmpool.core.transfer.outbound import SourceSide
from tests.core.machines.test_transfer_machine import TransferMachine

Plant = Callable[[pytest.MonkeyPatch], None]


def reserved_blocks_are_free_while_the_copy_still_writes(patch: pytest.MonkeyPatch) -> None:
    for event in (TargetEvent.ABORTED, TargetEvent.EXPIRED, TargetEvent.YIELDED, TargetEvent.CONTROL_LOST):
        patch.setitem(TARGET_TRANSITIONS[TargetState.COPYING], event, TargetState.ENDED)


def pins_are_gone_while_the_driver_still_reads(patch: pytest.MonkeyPatch) -> None:
    for event in (SourceEvent.ABORTED, SourceEvent.EXPIRED, SourceEvent.YIELDED, SourceEvent.CONTROL_LOST):
        patch.setitem(SOURCE_TRANSITIONS[SourceState.SENDING], event, SourceState.ENDED)


def published_without_confirmation(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(TRANSFER_TRANSITIONS[TransferState.COPYING], TransferEvent.COPIED, TransferState.PUBLISHING)


def finalized_before_the_publication(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(TRANSFER_TRANSITIONS[TransferState.CONFIRMING], TransferEvent.CONFIRMED, TransferState.FINALIZING)


def what_is_over_is_forgotten_at_once(patch: pytest.MonkeyPatch) -> None:
    def remember(exchange: Exchange, answer: TransferAnswer) -> None:
        exchange._say(answer)

    patch.setattr(Exchange, "_remember", remember)


def a_source_has_no_deadline(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SourceSide, "deadline_ns", property(lambda _: Nanos(1 << 60)))


def transfers_of_an_old_control_go_on(patch: pytest.MonkeyPatch) -> None:
    def join(exchange: Exchange, control: Peer) -> None:
        exchange._control = control

    patch.setattr(Exchange, "join", join)


def a_source_does_not_pin(patch: pytest.MonkeyPatch) -> None:
    begin = SourceSide.__init__

    def begin_unpinned(side: SourceSide, order: PrepareSource, pool: BlockPool) -> None:
        begin(side, order, pool)
        pool.release(side._blocks, StepNumber(0))

    patch.setattr(SourceSide, "__init__", begin_unpinned)
    patch.setattr(SourceSide, "_let_go", lambda _: None)
    patch.setattr(SourceSide, "pinned", property(lambda _: []))


@pytest.mark.parametrize(
    "plant",
    [
        reserved_blocks_are_free_while_the_copy_still_writes,
        pins_are_gone_while_the_driver_still_reads,
        published_without_confirmation,
        finalized_before_the_publication,
        what_is_over_is_forgotten_at_once,
        a_source_has_no_deadline,
        transfers_of_an_old_control_go_on,
        a_source_does_not_pin,
    ],
    ids=lambda plant: plant.__name__,
)
def test_it_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    hunt = settings(
        max_examples=5_000,  # what is drawn depends on which modules are loaded; the first that finds it ends the hunt
        stateful_step_count=50,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(TransferMachine, settings=hunt)
