"""What must hold of a worker after each of its events. It looks into the machine, and asks it nothing."""

from collections import deque
from collections.abc import Callable, Iterator

from lmpool.core.block import BlockState
from lmpool.core.effects import CancelCopy, CopyBlocks, RunStep, Send, SendBlocks
from lmpool.core.events import PeerLost, StepCompleted, StepFailed
from lmpool.core.ids import BlockId, Nanos, Peer, RequestId
from lmpool.core.messages.ingress_worker import Accepted, Ended, PromptScored, Refused, TokensProduced
from lmpool.core.messages.worker_control import DrainBegun, FullReport, Report
from lmpool.core.plan import BatchPlan, Row
from lmpool.core.prefix import split_chain
from lmpool.core.worker import Worker
from lmpool.sim.swarm.client import Client
from lmpool.sim.swarm.exchange_checks import ExchangeChecks, TransferWords

HELD = (BlockState.WRITING, BlockState.PINNED)


class WorkerChecks:
    """Of one life."""

    def __init__(
        self,
        machine: Worker,
        clients: dict[RequestId, Client],
        lineage: dict[bytes, bytes | None],
        words: TransferWords,
    ) -> None:
        self._machine = machine
        self.exchange = ExchangeChecks(machine, words)
        self._clients = clients
        self._lineage = lineage
        """Every block that may ever be: its parent, or None for a first block."""
        self._plans: deque[tuple[BatchPlan, tuple[tuple[BlockId, int], ...]]] = deque()
        """In flight, with the blocks of each and their generations."""
        self._ended: dict[tuple[RequestId, int], None] = {}
        self._told: dict[bytes, None] | None = None
        """Hashes in the reports so far; None before the first full one to the present control."""
        self._told_drain: dict[Peer, None] = {}
        """Who knows that it drains."""
        self._told_live: dict[RequestId, None] = {}
        """Requests that are live by the reports so far."""

    def after(self, now: Nanos, event: object, effects: list[object]) -> None:
        pool = self._machine._execution.pool
        if isinstance(event, StepCompleted | StepFailed):
            self._plans.popleft()
        elif isinstance(event, PeerLost):
            self._told_drain.pop(event.peer, None)
        for effect in effects:
            match effect:
                case RunStep(plan=plan):
                    blocks = tuple((block, pool.generation(block)) for row in plan.rows for block in row.blocks)
                    self._plans.append((plan, blocks))
                case Send(peer=peer, message=message):
                    self._hear(peer, message)
                case CopyBlocks() | SendBlocks() | CancelCopy():
                    pass
                case _:
                    raise AssertionError(f"{effect} is no effect of a worker")
        self._check_steps()
        self._check_requests(now)
        self.exchange.after(now, event, effects)
        if self._machine._is_draining:
            assert self._told_drain.keys() == self._machine._peers.keys(), "it drains, and somebody does not know"
        deadline = self._machine.next_deadline()
        settings = self._machine._settings
        assert now < deadline <= now + settings.report_interval_ns, "its next deadline has passed, or its report is off"
        assert len(self._plans) <= settings.steps_in_flight_max

    @property
    def residents(self) -> bytes:
        return self._machine._execution.pool.residents()

    def has(self, request: RequestId) -> bool:
        """Live, or ended since the last report."""
        return request in self._machine._live or request in self._machine._reporter._ended

    @property
    def is_at_rest(self) -> bool:
        machine = self._machine
        has_work = machine._live or machine._execution.steps_in_flight or machine._execution.pool.has_changes
        return not has_work and self.exchange.is_at_rest

    def requests_in(self, plan: BatchPlan) -> list[RequestId]:
        """That have a row in a step in flight."""
        steps = self._machine._execution._steps
        return [row.request.id for step in steps if step.number == plan.step for row in step.rows]

    def audit(self) -> None:
        self._machine.audit()
        self.exchange.audit()
        pool = self._machine._execution.pool
        counts = pool.counts()
        assert sum((counts.free, counts.writing, counts.reserved, counts.aborting, counts.pinned, counts.cached)) == (
            pool.size
        )
        for digest in split_chain(pool.residents()):
            self._check_parent(digest, lambda parent: pool.find(parent) is not None)  # type: ignore[arg-type]

    def _check_steps(self) -> None:
        """Whatever a running step may touch is held, and what it writes is not resident."""
        pool = self._machine._execution.pool
        for plan, blocks in self._plans:
            for block, generation in blocks:
                state = pool.state(block)
                assert state in HELD, f"block {block} is {state.value} while step {plan.step} may touch it"
                assert pool.generation(block) == generation, f"block {block} was reused while step {plan.step} runs"
            for row in plan.rows:
                for block in self._written(row):
                    state = pool.state(block)
                    assert state is BlockState.WRITING, (
                        f"block {block} is {state.value} while step {plan.step} writes it"
                    )

    def _written(self, row: Row) -> Iterator[BlockId]:
        if row.writes:
            size = self._machine._settings.block_size
            yield from row.blocks[row.start // size : (row.start + row.length - 1) // size + 1]

    def _check_requests(self, now: Nanos) -> None:
        machine = self._machine
        for request in machine._live.values():
            assert request.peer in machine._peers, f"{request.id} goes on for {request.peer}, whose link is gone"
            deadline = request.submit.deadline_ns
            assert deadline is None or now < deadline, f"{request.id} lives on after its deadline"
        schedule = machine._execution.schedule
        sequences = schedule.waiting + len(schedule.running)
        assert sequences == sum(len(request.open_sequences) for request in machine._live.values()), "a sequence is lost"

    def _hear(self, peer: Peer, message: object) -> None:
        match message:
            case TokensProduced():
                self._check_tokens(peer, message)
            case DrainBegun():
                self._told_drain[peer] = None
            case Report(added=added, removed=removed):
                self._take_report(added, removed)
                self._told_live.update(dict.fromkeys(message.accepted))
                for request in message.ended:
                    self._told_live.pop(request, None)
                assert self._told_live.keys() == self._machine._live.keys(), "its report tells of other requests"
            case FullReport(hashes=hashes, part=part):
                if part == 0:
                    self._told = {}
                self._take_report(hashes, b"")
                self._told_live = dict.fromkeys(message.requests)
            case Ended(request=request, attempt=attempt):
                assert (request, attempt) not in self._ended, f"{request} attempt {attempt} ends twice"
                self._ended[request, attempt] = None
            case Accepted(request=request, attempt=attempt) | Refused(request=request, attempt=attempt):
                assert (request, attempt) not in self._ended, f"{message} after its end"
            case PromptScored(request=request, start=start, entries=entries):
                scores = self._clients[request].scores[start - 1 : start - 1 + len(entries)]
                assert entries == scores, f"wrong scores of {request}"
            case _:
                pass

    def _check_tokens(self, peer: Peer, message: TokensProduced) -> None:
        for row, (counter, attempt, choice, index, token, finish) in enumerate(
            zip(
                message.requests,
                message.attempts,
                message.choices,
                message.output_indexes,
                message.tokens,
                message.finishes,
                strict=True,
            )
        ):
            request = RequestId(peer.epoch, counter)
            client = self._clients[request]
            assert (request, attempt) not in self._ended, f"a token of {request} after its end"
            if token < 0:
                assert client.is_tainted, f"{request} has failed for nothing: {finish}"
                continue
            expected, logprobs = client.expected[choice][index]
            assert token == expected, f"{request} choice {choice} output {index}: {token} instead of {expected}"
            assert logprobs == (message.logprobs[row] if message.logprobs else None)

    def _take_report(self, added: bytes, removed: bytes) -> None:
        told = self._told
        assert told is not None, "net changes before a full report"
        for digest in split_chain(removed):
            assert digest in told, "what is removed was never reported"
            del told[digest]
        for digest in split_chain(added):
            assert digest not in told, "added twice"
            told[digest] = None
            self._check_parent(digest, lambda parent: parent in told)

    def _check_parent(self, digest: bytes, is_there: Callable[[bytes], bool]) -> None:
        assert digest in self._lineage, f"block {digest.hex()} is of no chain"
        parent = self._lineage[digest]
        assert parent is None or is_there(parent), f"block {digest.hex()} is resident without its parent"

    def check_rest(self) -> None:
        """When everything has ended."""
        machine = self._machine
        self.exchange.check_rest()
        counts = machine._execution.pool.counts()
        assert counts.free + counts.cached == machine._settings.blocks, f"blocks are still held: {counts}"
        assert not machine._live, "requests live on"
        assert not machine._execution.steps_in_flight, "steps run on"
        assert len(machine._execution.schedule._slots) == machine._settings.sequences_max, "a slot is lost"
        residents = dict.fromkeys(split_chain(machine._execution.pool.residents()))
        assert self._told == residents, "the last report does not tell what is resident"
