"""What must hold of an ingress after each of its events. It looks into the machine, and asks it nothing."""

from lmpool.core.effects import Send
from lmpool.core.ids import Nanos, Peer, RequestId, Role
from lmpool.core.ingress import Ingress
from lmpool.core.messages.ingress_control import BookingsOffered
from lmpool.core.messages.ingress_worker import Submit
from lmpool.core.open_request import Leaving
from lmpool.core.prefix import unpack_tokens
from lmpool.sim.swarm.client import Client


class IngressChecks:
    """Of one life."""

    def __init__(self, machine: Ingress, clients: dict[RequestId, Client]) -> None:
        self._machine = machine
        self._clients = clients
        self._attempts: dict[RequestId, int] = {}

    def after(self, now: Nanos, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case Send(peer=peer, message=Submit() as submit):
                    assert peer.role is Role.WORKER
                    self._check_submit(submit)
                case Send(message=BookingsOffered(requests=requests)):
                    assert len(requests) == len(dict.fromkeys(requests))
                case _:
                    pass
        deadline = self._machine.next_deadline()
        assert deadline is None or deadline > now, "its next deadline has passed"
        for request in self._machine._requests:
            late = request.arrived.deadline_ns
            is_over = late is not None and late <= now
            assert not is_over or isinstance(request.phase, Leaving), f"{request.id} goes on after its deadline"

    def _check_submit(self, submit: Submit) -> None:
        """Attempts rise, and what is sent along is what the client has."""
        before = self._attempts.get(submit.request, -1)
        assert submit.attempt > before, f"{submit.request} attempt {submit.attempt} after {before}"
        self._attempts[submit.request] = submit.attempt
        client = self._clients[submit.request]
        assert client.expected, "a request without a choice"
        for choice, output in zip(submit.choices, submit.outputs, strict=True):
            tokens = unpack_tokens(output).tolist()
            assert tokens == [token for token, _ in client.expected[choice][: len(tokens)]]
            assert len(tokens) == client.taken[choice], "it goes on from other tokens than were delivered"

    def audit(self) -> None:
        """Tables agree with the requests, each of which has a client that waits and a way to go on."""
        table, workers = self._machine._requests, self._machine._workers
        deadlines = table._deadlines._by_request
        choices = 0
        for request in table:
            choices += request.arrived.choices
            client = self._clients[request.id]
            assert client.close is None, f"{request.id} is closed and goes on"
            assert deadlines.get(request.id) == request.deadline, f"the deadline of {request.id} is lost"
            worker = request.worker
            assert (worker is None) or workers.knows(worker), f"{request.id} waits for {worker}, whose link is gone"
            assert (worker is None) or request.counter in table._at[worker]
            assert worker is not None or request.deadline is not None, f"nothing will ever happen to {request.id}"
            for choice, output in zip(request.choices, client.taken, strict=True):
                assert len(choice.output) == output, "it counts other tokens than were delivered"
        assert choices == table.choices
        assert len(deadlines) <= len(table)
        assert sum(map(len, table._at.values())) == sum(request.worker is not None for request in table)

    def is_at(self, request: RequestId, worker: Peer) -> bool:
        """Whether the request is or may still be there."""
        found = self._machine._requests.get(request.counter)
        return found is not None and found.worker == worker

    @property
    def is_at_rest(self) -> bool:
        return len(self._machine._requests) == 0

    def check_rest(self) -> None:
        assert len(self._machine._requests) == 0, "requests are still open"
        assert self._machine.next_deadline() is None
