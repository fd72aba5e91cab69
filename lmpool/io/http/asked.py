"""What a generation request asks for, checked against the model's facts and ready for the pool."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from lmpool.core.ids import Nanos
from lmpool.io.generation import Chat, GenerationRequest, Prompt, SamplingParams
from lmpool.io.http.answers import CHAT, COMPLETION, ChatChoice, Choice, CompletionChoice, Counts, Form
from lmpool.io.http.fields import Body, wrong_value
from lmpool.io.http.gate import Caller
from lmpool.io.http.headers import Wishes
from lmpool.io.http.prompts import read_messages, read_prompts, require_template
from lmpool.io.http.sampling import or_default, read_counts, read_sampling, refuse_unsupported
from lmpool.io.http.schema import CHAT_FIELDS, COMPLETION_FIELDS, KNOWN_ELSEWHERE, OUTPUT_TOKENS_DEFAULT
from lmpool.io.http.service import Context, served_name


@attrs.frozen
class Envelope:
    """What is known of a request besides its body."""

    caller: Caller
    wishes: Wishes
    arrived_ns: Nanos


@attrs.frozen
class Asked:
    form: Form
    model: str
    requests: tuple[GenerationRequest, ...]
    """One a prompt; all with the same sampling."""
    is_stream: bool
    counts: Counts
    """Of a stream."""
    ignored: int
    """Fields that nobody knows."""

    @property
    def choices(self) -> int:
        """Per prompt."""
        return self.requests[0].sampling.choices

    def new_choices(self) -> list[Choice]:
        """Of all prompts, by index."""
        kind = ChatChoice if self.form is CHAT else CompletionChoice
        wants_logprobs = self.requests[0].sampling.logprobs is not None
        return [kind(index, wants_logprobs=wants_logprobs) for index in range(len(self.requests) * self.choices)]


def read_completion(content: Mapping[str, Any], envelope: Envelope, context: Context) -> Asked:
    """Raises ApiError."""
    body, facts = Body(content, COMPLETION_FIELDS), context.text.facts
    refuse_unsupported(content)
    model = served_name(context, body.text("model"))
    prompts = read_prompts(body, facts.vocabulary)
    logprobs = body.integer("logprobs")
    echo = body.flag("echo")
    shared = read_sampling(body, facts.vocabulary)
    tokens_max = or_default(body.integer("max_tokens"), max(OUTPUT_TOKENS_DEFAULT, shared.min_tokens))
    sampling = attrs.evolve(shared, max_tokens=tokens_max, logprobs=logprobs, echo=echo)
    if tokens_max == 0 and not echo:
        wrong_value("max_tokens", "must be at least 1 without echo, not 0")
    return _asked(COMPLETION, model, body, envelope, prompts, sampling)


def read_chat(content: Mapping[str, Any], envelope: Envelope, context: Context) -> Asked:
    """Raises ApiError."""
    body, facts = Body(content, CHAT_FIELDS), context.text.facts
    refuse_unsupported(content)
    model = served_name(context, body.text("model"))
    require_template(facts)
    chat = Chat(read_messages(body))
    newer, older = body.integer("max_completion_tokens"), body.integer("max_tokens")
    name, tokens_max = ("max_tokens", older) if newer is None else ("max_completion_tokens", newer)
    if tokens_max == 0:
        wrong_value(name, "must be at least 1, not 0")
    best = body.integer("top_logprobs")
    wants_logprobs = body.flag("logprobs")
    if best and not wants_logprobs:
        wrong_value("top_logprobs", "needs logprobs to be true")
    logprobs = or_default(best, 0) if wants_logprobs else None
    sampling = attrs.evolve(read_sampling(body, facts.vocabulary), max_tokens=tokens_max, logprobs=logprobs)
    return _asked(CHAT, model, body, envelope, (chat,), sampling)


def _asked(
    form: Form, model: str, body: Body, envelope: Envelope, prompts: Sequence[Prompt], sampling: SamplingParams
) -> Asked:
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        wrong_value("min_tokens", f"must be at most the limit of {sampling.max_tokens}, not {sampling.min_tokens}")
    salt = body.text("cache_salt")
    requests = tuple(_request(prompt, sampling, salt, envelope) for prompt in prompts)
    return Asked(
        form=form,
        model=model,
        requests=requests,
        is_stream=body.flag("stream"),
        counts=read_counts(body),
        ignored=len([name for name in body.unknown() if name not in KNOWN_ELSEWHERE]),
    )


def _request(prompt: Prompt, sampling: SamplingParams, salt: str | None, envelope: Envelope) -> GenerationRequest:
    wishes, caller = envelope.wishes, envelope.caller
    return GenerationRequest(
        prompt=prompt,
        sampling=sampling,
        session=wishes.session,
        priority=wishes.priority,
        deadline_s=None if wishes.deadline_ms is None else wishes.deadline_ms / 1000,
        tenant=caller.client.tenant,
        cache_salt=salt,
        label=caller.label,
        arrived_ns=envelope.arrived_ns,
    )
