"""The pool as a program sees it: requests in, text out. The HTTP server and the embedded engine both stand on it."""

import asyncio
import math
import secrets
from collections.abc import AsyncGenerator

from lmpool.core.events import RequestArrived
from lmpool.core.ids import SECOND, BlockHash, Nanos, RequestId, TransferId
from lmpool.core.ingress import IngressSnapshot
from lmpool.core.messages.ingress_control import Decision, StateReported
from lmpool.core.open_request import LATE
from lmpool.core.prefix import (
    HASH_BYTES,
    TOKEN_BYTES,
    chain_length,
    extend_chain,
    namespace_digest,
    pack_tokens,
)
from lmpool.io.answer import Answer, UnreadTotal
from lmpool.io.clock import monotonic_now
from lmpool.io.errors import BadRequest, DeadlinePassed, NoReplica
from lmpool.io.explained import NAMES_KEPT, Explained, RequestNames
from lmpool.io.generation import Chat, Chunk, GenerationRequest, Prompt
from lmpool.io.ingress import IngressAdapter
from lmpool.io.message_bounds import CHAIN_BLOCKS_MAX
from lmpool.io.request_check import (
    check_choices,
    check_length,
    check_prompt,
    check_request,
    outputs_within,
    sampling_settings,
    stop_settings,
)
from lmpool.io.text.model_text import ModelText
from lmpool.io.text.template import ChatError
from lmpool.io.transfer_order import TransferWish

JOIN_WAIT_S = 10.0
"""For the first replica, of an ingress that was started again: links are found within half a second."""

SLICE_BLOCKS = 1024
"""Of a long chain, hashed between two turns of the event loop: about a millisecond."""


class Pool:
    def __init__(self, ingress: IngressAdapter, text: ModelText) -> None:
        """Both stay their owner's to close."""
        self._ingress = ingress
        self._text = text
        self._names = RequestNames(NAMES_KEPT)
        self._unread = UnreadTotal()

    @property
    def is_ready(self) -> bool:
        """Whether a request could be taken now."""
        return self._ingress.is_ready

    @property
    def has_joined(self) -> bool:
        """Whether a replica has joined in this life; then a request waits for one to come back."""
        return self._ingress.namespace_base is not None

    @property
    def tokens_max(self) -> int:
        """Longest context in force, prompt and output; the model's own before a replica has joined."""
        tokens_max = self._ingress.tokens_max
        return self._text.facts.model_tokens_max if tokens_max is None else tokens_max

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Raises LMPoolError. Closing the generator, or cancelling who reads it, ends the request."""
        arrived_ns = monotonic_now() if request.arrived_ns is None else request.arrived_ns
        check_request(request, self._text.facts)
        check_choices(request.sampling, self._ingress.place.requests_max)
        check_length(request.prompt, self.tokens_max, self._text.token_characters_max)
        tokens = await self._encode(request.prompt)
        check_prompt(tokens, self._text.facts.vocabulary)
        await self._some_replica(arrived_ns, request.deadline_s)
        outputs = outputs_within(request.prompt, len(tokens), request.sampling.max_tokens, self.tokens_max)
        ingress, request_id = self._ingress, self._ingress.new_request()
        answer = Answer(
            request_id,
            request,
            tokens,
            self._text,
            lambda choice, index: ingress.stop(request_id, choice, index),
            lambda: ingress.cancel(request_id),
            self._unread,
        )
        if outputs == 0 and (request.sampling.logprobs is None or len(tokens) == 1):
            answer.end_without_output()
            for chunk in await answer.next_chunks():
                yield chunk
            return
        arrived = await self._arrival(request, request_id, arrived_ns, tokens, outputs)
        self._names.add(request_id, (request.label, request.answer_id))
        try:
            ingress.submit(arrived, answer.take)
            while chunks := await answer.next_chunks():
                for chunk in chunks:
                    yield chunk
        finally:
            ingress.cancel(request_id)
            answer.close()

    def snapshot(self) -> IngressSnapshot:
        return self._ingress.snapshot()

    async def pool_state(self) -> StateReported:
        """Raises NoReplica while control does not answer."""
        return await self._ingress.pool_state()

    async def decisions(self, request: RequestId | None, limit: int) -> tuple[Decision, ...]:
        """The newest first; of one request, or all. Raises NoReplica while control does not answer."""
        return await self._ingress.decisions(None if request is None else (request,), limit)

    async def explain(self, word: str | None, tenant: str | None, limit: int) -> Explained:
        """Decisions and what became of them; `word`: of which request, as a client names it; `tenant`: of whom alone.
        Raises NoReplica while control does not answer."""
        history = self._ingress.history
        requests = None if tenant is None else self._ingress.requests_of(tenant)
        if word is not None:
            found = self._names.find(word)
            requests = found if requests is None else tuple(request for request in found if request in requests)
        decisions = () if requests == () else await self._ingress.decisions(requests, limit)
        shown = [decision.request for decision in decisions] if word is None else list(requests or ())
        return Explained(decisions, tuple(known for request in dict.fromkeys(shown) if (known := history(request))))

    async def transfer(self, wish: TransferWish) -> TransferId:
        """Begins it. Raises BadRequest, TransferDenied, and NoReplica while control does not answer."""
        chain = wish.chain
        if wish.prompt is not None:
            await self._some_replica(monotonic_now(), None)
            base = self._ingress.namespace_base
            assert base is not None
            namespace = namespace_digest(base, None, wish.tenant, wish.cache_salt)
            tokens = pack_tokens(await self._encode(wish.prompt))
            chain = await _chain(namespace, tokens, self._ingress.place.block_size)
        if not 0 < chain_length(chain) <= CHAIN_BLOCKS_MAX:
            blocks = f"{chain_length(chain)} complete blocks"
            raise BadRequest(
                f"The prompt has {blocks}; 1 to {CHAIN_BLOCKS_MAX} can be copied.", "prompt", "invalid_value"
            )
        return await self._ingress.transfer(wish, chain)

    async def clear_cache(self) -> int:
        """Blocks that were dropped, over all replicas. Raises NoReplica if one of them does not answer."""
        return await self._ingress.clear_cache()

    async def _some_replica(self, arrived_ns: Nanos, deadline_s: float | None) -> None:
        """Waits until one has joined. Raises NoReplica, DeadlinePassed."""
        left_s = math.inf if deadline_s is None else deadline_s - (monotonic_now() - arrived_ns) / SECOND
        try:
            await self._ingress.any_joined(min(JOIN_WAIT_S, left_s))
        except NoReplica:
            if left_s > JOIN_WAIT_S:
                raise
            raise DeadlinePassed(LATE) from None

    async def _encode(self, prompt: Prompt) -> list[int]:
        """Raises BadRequest."""
        match prompt:
            case Chat(messages=messages):
                try:
                    return await self._text.encode_chat(messages, add_generation_prompt=True)
                except ChatError as error:
                    raise BadRequest(f"The chat template refuses: {error}.", "messages", "invalid_value") from error
            case str():
                return await self._text.encode(prompt, add_special_tokens=True)
            case _:
                return list(prompt)

    async def _arrival(
        self, request: GenerationRequest, request_id: RequestId, arrived_ns: Nanos, tokens: list[int], outputs: int
    ) -> RequestArrived:
        sampling = request.sampling
        base = self._ingress.namespace_base
        assert base is not None
        namespace = namespace_digest(base, None, request.tenant, request.cache_salt)
        packed = pack_tokens(tokens)
        deadline_s = request.deadline_s
        return RequestArrived(
            request=request_id,
            tenant=request.tenant,
            session=request.session,
            namespace=namespace,
            prompt=packed,
            chain=await _chain(namespace, packed, self._ingress.place.block_size),
            choices=sampling.choices,
            sampling=sampling_settings(sampling, secrets.randbits(63) if sampling.seed is None else sampling.seed),
            stop=stop_settings(sampling, self._text.facts.ends, outputs),
            prompt_logprobs=sampling.logprobs if sampling.echo else None,
            priority=request.priority,
            arrived_ns=arrived_ns,
            deadline_ns=None if deadline_s is None else Nanos(arrived_ns + round(deadline_s * SECOND)),
            draw=secrets.randbits(63),
        )


async def _chain(namespace: BlockHash, tokens: bytes, block_size: int) -> bytes:
    """Of all complete blocks. Long ones let others have their turn."""
    width = SLICE_BLOCKS * block_size * TOKEN_BYTES
    last, parts = namespace, [b""]
    for start in range(0, len(tokens), width):
        if start:
            await asyncio.sleep(0)
        part = extend_chain(last, tokens[start : start + width], block_size)
        last = BlockHash(part[-HASH_BYTES:])
        parts.append(part)
    return b"".join(parts)
