"""What must hold of control's transfers after each of its events, and what became of them."""

from lmpool.core.control import ControlPlane
from lmpool.core.effects import Send
from lmpool.core.ids import Nanos, TransferId
from lmpool.core.messages.ingress_control import RouteDecided
from lmpool.core.messages.transfer import Confirm, Finalize, PrepareTarget, Publish
from lmpool.core.prefix import HASH_BYTES
from lmpool.core.transfer.life import TransferState
from lmpool.core.transfer.transfers import ANSWERS_AWAITED, Transfer, TransferOutcome
from lmpool.sim.swarm.exchange_checks import TransferWords
from lmpool.sim.swarm.promises import NEVER

OVER = (TransferState.ABORTING, TransferState.ENDED)
ALL_ANSWERS = ANSWERS_AWAITED + 1
"""The last to hear that both sides have ended."""


class TransferChecks:
    """Of one life of control."""

    def __init__(self, machine: ControlPlane, words: TransferWords) -> None:
        self._carrier = machine._carrier
        self._transfers = machine._transfers
        self._words = words
        self._begun: dict[TransferId, Nanos] = {}
        self._seen: dict[TransferId, tuple[Transfer, TransferState]] = {}
        """Under way, with the phase after the last event."""

    def after(self, now: Nanos, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case Send(message=PrepareTarget(transfer=transfer)):
                    self._begun[transfer] = now
                case Send(message=Confirm(transfer=transfer)):
                    assert transfer in self._words.copied, f"{transfer} is to be confirmed, and not copied"
                case Send(message=Publish(transfer=transfer)):
                    assert transfer in self._words.confirmed, f"{transfer} is to be published, and not confirmed"
                case Send(message=Finalize(transfer=transfer)):
                    assert transfer in self._words.published, f"{transfer} is to be finalized, and not published"
                case _:
                    pass
        for plan in self._transfers.under_way():
            longest = ALL_ANSWERS * self._transfers.answer_ns + plan.terms.copy_ns
            begun = self._begun.get(plan.id, now)  # it is told of with the next event
            assert now < begun + longest, f"{plan.id} outlives its deadline"
            assert now < plan.late_ns, f"{plan.id} is {plan.state.value} for too long"
        self._count()

    def _count(self) -> None:
        under_way = {transfer.id: (transfer, transfer.state) for transfer in self._transfers.under_way()}
        for number, (transfer, before) in self._seen.items():
            if before not in OVER and transfer.outcome not in (None, TransferOutcome.PUBLISHED):
                self._words.counts[f"transfers aborted while {before.value}"] += 1
            if number not in under_way:
                self._begun.pop(number, None)
        self._seen = under_way

    def check_promise(self, chain: bytes, decided: RouteDecided) -> None:
        """What a request is to wait for is on its way to its rank, and is of its chain."""
        awaits = decided.awaits
        if awaits is None or awaits.transfer.counter == NEVER:
            return
        plan = self._transfers.get(awaits.transfer)
        assert plan is not None, f"{decided.request} is to wait for {awaits.transfer}, which is not under way"
        target = plan.terms.target
        assert (target.rank, target.epoch) == (decided.rank, decided.epoch), f"{awaits.transfer} goes elsewhere"
        size = HASH_BYTES * awaits.blocks
        assert 0 < size <= len(chain), f"{decided.request} has no {awaits.blocks} blocks"
        assert plan.terms.chain[:size] == chain[:size], f"{awaits.transfer} brings other blocks"

    def is_wanted(self, transfer: TransferId) -> bool:
        """Whether control has not told its sides to end."""
        found = self._transfers.get(transfer)
        return found is not None and found.state not in OVER

    @property
    def is_at_rest(self) -> bool:
        return len(self._transfers) == 0

    def check_rest(self) -> None:
        assert len(self._transfers) == 0, f"transfers are left: {self._transfers.under_way()}"
        assert not self._carrier._awaiting, f"requests are kept for transfers: {list(self._carrier._awaiting)}"
