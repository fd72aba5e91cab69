"""Sampling from made-up logits: a few dozen candidate tokens, all of them functions of one 64-bit number."""

import math
from collections import Counter

from lmpool.core.plan import TokenLogprobs
from lmpool.core.prefix import unpack_tokens
from lmpool.core.sampling import SamplingSettings

CANDIDATES = 32
"""More than a client may ask the log-probabilities of, each with two bits of the number."""
LOGIT_BEST = 8.0
LOGIT_STEP = 0.125
LOGIT_REST = -12.0
"""Of every token that is no candidate."""


class TokenCounts:
    """What penalties count."""

    def __init__(self, history: bytes, prompt_tokens: int) -> None:
        """`history`: packed prompt and output so far."""
        tokens = unpack_tokens(history)
        self.everywhere = Counter(tokens)
        self.output = Counter(tokens[prompt_tokens:])

    def add(self, token: int) -> None:
        self.everywhere[token] += 1
        self.output[token] += 1


def candidate_logits(chance: int, vocabulary: int) -> dict[int, float]:
    """By token, best first."""
    token = chance % vocabulary
    stride = 1 + (chance >> 24) % max(1, vocabulary - 1)
    logit = LOGIT_BEST
    logits: dict[int, float] = {}
    for index in range(CANDIDATES):
        logits.setdefault(token, logit)
        token = (token + stride) % vocabulary
        logit -= LOGIT_STEP * (1 + (chance >> 2 * index & 3))
    return logits


def _is_plain(settings: SamplingSettings) -> bool:
    """Whether the likeliest token of all is wanted as it is, without its probability."""
    return (
        settings.temperature == 0
        and settings.logprobs is None
        and not settings.logit_bias
        and settings.repetition_penalty == 1
        and settings.presence_penalty == settings.frequency_penalty == 0
    )


def _adjusted(logits: dict[int, float], settings: SamplingSettings, counts: TokenCounts) -> dict[int, float]:
    """After bias and penalties."""
    adjusted = dict(logits)
    for token, bias in settings.logit_bias:
        adjusted[token] = adjusted.get(token, LOGIT_REST) + bias
    return {token: _penalised(token, logit, settings, counts) for token, logit in adjusted.items()}


def _penalised(token: int, logit: float, settings: SamplingSettings, counts: TokenCounts) -> float:
    penalty = settings.repetition_penalty if token in counts.everywhere else 1.0
    if token in counts.output:
        seen = settings.presence_penalty + settings.frequency_penalty * counts.output[token]
    else:
        seen = 0.0
    return (logit / penalty if logit > 0 else logit * penalty) - seen


def _without(logits: dict[int, float], ends: tuple[int, ...], vocabulary: int) -> dict[int, float]:
    kept = {token: logit for token, logit in logits.items() if token not in ends}
    return kept or {next(token for token in range(vocabulary) if token not in ends): LOGIT_REST}


def _best_first(logits: dict[int, float]) -> list[tuple[int, float]]:
    return sorted(logits.items(), key=lambda entry: (-entry[1], entry[0]))


def _drawn(ranked: list[tuple[int, float]], settings: SamplingSettings, chance: float) -> int:
    """By temperature, top-k, top-p, min-p and the inverse of what is left."""
    if settings.top_k:
        ranked = ranked[: settings.top_k]
    best = ranked[0][1]
    weights = [math.exp((logit - best) / settings.temperature) for _, logit in ranked]
    whole = sum(weights)
    before = 0.0
    kept = 0
    while kept < len(weights) and before < settings.top_p * whole and weights[kept] >= settings.min_p:
        before += weights[kept]
        kept += 1
    threshold = chance * before
    reached = 0.0
    for (token, _), weight in zip(ranked, weights[:kept], strict=False):
        reached += weight
        if threshold < reached:
            return token
    return ranked[max(kept - 1, 0)][0]


def _log_mass(logits: dict[int, float]) -> float:
    best = max(logits.values())
    return best + math.log(sum(math.exp(logit - best) for logit in logits.values()))


def _described(logits: dict[int, float], token: int, best: int) -> TokenLogprobs:
    mass = _log_mass(logits)
    top = _best_first(logits)[:best]
    return TokenLogprobs(
        token=token,
        logprob=logits.get(token, LOGIT_REST) - mass,
        top_tokens=tuple(other for other, _ in top),
        top_logprobs=tuple(logit - mass for _, logit in top),
    )


def score(chance: int, vocabulary: int, token: int, best: int) -> TokenLogprobs:
    """A given token, and the `best` most likely in its place."""
    return _described(candidate_logits(chance, vocabulary), token, best)


def sample(
    chance: int,
    vocabulary: int,
    settings: SamplingSettings,
    counts: TokenCounts,
    forbidden: tuple[int, ...],
    uniform: float,
) -> tuple[int, TokenLogprobs | None]:
    """The next token of a context that has come to the number `chance`."""
    if _is_plain(settings):
        first = chance % vocabulary  # the best candidate, whatever the others are
        if first not in forbidden:
            return first, None
    logits = _without(_adjusted(candidate_logits(chance, vocabulary), settings, counts), forbidden, vocabulary)
    ranked = _best_first(logits)
    token = ranked[0][0] if settings.temperature == 0 else _drawn(ranked, settings, uniform)
    if settings.logprobs is None:
        return token, None
    return token, _described(logits, token, settings.logprobs)
