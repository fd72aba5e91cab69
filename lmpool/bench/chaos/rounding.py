"""Whether the answer of a real model differs from the undisturbed one by more than rounding can explain.

Greedy answers in float32 are compared token by token. What they are computed beside, and how much of the prompt is
cached, changes the order of sums, and with it the last digits; so a token may be another one only where the two best
were as good as equal.
"""

from lmpool.bench.chaos.answer import Answer, ChoiceAnswer, ScoredToken

TOLERANCE = 2e-3
"""Between two log-probabilities of one token; ten times what other batches were seen to change."""


def faults_beyond_rounding(told: Answer, expected: Answer) -> list[str]:
    """Empty if none. Both with the two best of each token."""
    found = []
    for index, (choice, other) in enumerate(zip(told.choices, expected.choices, strict=True)):
        fault = _fault(choice, other)
        if fault:
            found.append(f"choice {index}: {fault}")
    return found


def _fault(told: ChoiceAnswer, expected: ChoiceAnswer) -> str:
    for index, (token, right) in enumerate(zip(told.logprobs, expected.logprobs, strict=False)):
        if token.token != right.token:
            gap = lead(right)
            is_tie = gap <= TOLERANCE
            return "" if is_tie else f"token {index} is {token.token!r} instead of {right.token!r}, best by {gap:.4f}"
        if abs((token.logprob or 0.0) - (right.logprob or 0.0)) > TOLERANCE:
            return f"token {index} {token.token!r} has {token.logprob} instead of {right.logprob}"
    if (told.text, told.finish, len(told.logprobs)) != (expected.text, expected.finish, len(expected.logprobs)):
        lengths = f"{len(told.logprobs)} tokens instead of {len(expected.logprobs)}"
        return f"equal tokens as far as both go, and {lengths}: {told.text!r} ({told.finish}) for {expected.text!r}"
    return ""


def lead(token: ScoredToken) -> float:
    """Of the best over the second; 0 where fewer than two have a name of their own."""
    values = sorted((logprob for _, logprob in token.best), reverse=True)
    return values[0] - values[1] if len(values) > 1 else 0.0
