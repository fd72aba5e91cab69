"""The distribution, each filter against a plain reference, and nothing of a row's neighbours."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.plan import NOT_FINITE
from lmpool.core.sampling import SamplingSettings, uniform
from lmpool.gpu.sampler import Draw, SequenceSampling, sample, token_logprobs
from tests.gpu.plans import sampling, start

pytestmark = pytest.mark.model

CPU = torch.device("cpu")
WIDTH = 12


def draw(
    settings: SamplingSettings,
    chance: float = 0.0,
    *,
    prompt: tuple[int, ...] = (0,),
    outputs: tuple[int, ...] = (),
    ends: tuple[int, ...] = (),
    width: int = WIDTH,
) -> Draw:
    begun = start(0, prompt, outputs=outputs, settings=settings, ends=ends)
    return Draw(SequenceSampling(begun, width, CPU), chance, forbids_end=ends != ())


def one(logits: list[float], settings: SamplingSettings, chance: float = 0.0) -> int:
    return int(sample(torch.tensor([logits]), [draw(settings, chance, width=len(logits))]).tokens[0])


def reference_kept(logits: list[float], settings: SamplingSettings) -> list[int]:
    """Ids that the filters keep, by sorting and counting one by one."""
    scaled = [logit / settings.temperature for logit in logits]
    order = sorted(range(len(logits)), key=lambda token: (-scaled[token], token))
    best = scaled[order[0]]
    weight = {token: math.exp(scaled[token] - best) for token in order}
    kept = order[: settings.top_k] if settings.top_k else order
    if settings.top_p < 1:
        total, held, count = sum(weight[token] for token in kept), 0.0, 0
        while count < len(kept) and (count == 0 or held < settings.top_p * total):
            held += weight[kept[count]]
            count += 1
        kept = kept[:count]
    return sorted(token for token in kept if weight[token] >= settings.min_p or token == order[0])


def reference_token(logits: list[float], settings: SamplingSettings, chance: float) -> int:
    kept = reference_kept(logits, settings)
    best = max(logits)
    weights = [math.exp((logits[token] - best) / settings.temperature) for token in kept]
    target, held = chance * sum(weights), 0.0
    for token, weight in zip(kept, weights, strict=True):
        held += weight
        if held > target:
            return token
    return kept[-1]


def test_greedy_takes_the_first_of_equal_ones() -> None:
    assert one([1.0, 3.0, 3.0, 2.0], sampling()) == 1


def test_the_distribution_is_softmax_of_logits_over_temperature() -> None:
    """The share of an even grid of uniforms that gives a token is its probability, exactly up to the grid."""
    logits = [0.3, -1.0, 2.0, 0.0, 1.1]
    grid = 2000
    chances = [(index + 0.5) / grid for index in range(grid)]
    for temperature in (0.5, 1.0, 2.5):
        draws = [draw(sampling(temperature=temperature), chance, width=5) for chance in chances]
        tokens = sample(torch.tensor([logits] * grid), draws).tokens
        shares = np.bincount(tokens.numpy(), minlength=5) / grid
        expected = torch.softmax(torch.tensor(logits) / temperature, -1).numpy()
        np.testing.assert_allclose(shares, expected, atol=1.01 / grid)


def test_uniforms_of_a_request_follow_the_distribution() -> None:
    """Chi-square over the uniforms that (seed, choice, index) give: 16.8 is the 99 % point for 6 degrees of freedom."""
    logits = torch.linspace(-1.5, 1.5, 7)
    count = 4000
    draws = [draw(sampling(temperature=1.0), uniform(11, 0, index), width=7) for index in range(count)]
    seen = np.bincount(sample(logits.repeat(count, 1), draws).tokens.numpy(), minlength=7)
    expected = torch.softmax(logits, -1).numpy() * count
    assert float(((seen - expected) ** 2 / expected).sum()) < 16.8


LOGITS = st.lists(st.integers(-40, 40).map(lambda number: number / 8), min_size=2, max_size=WIDTH)
"""Eighths, so that ties are common and sums exact enough for a reference."""


@given(
    LOGITS,
    st.sampled_from((0.25, 0.7, 1.0, 3.0)),
    st.sampled_from((1.0, 0.0, 0.1, 0.613, 0.9371)),
    st.integers(0, WIDTH + 2),
    st.sampled_from((0.0, 0.0301, 0.297, 0.811)),
    st.floats(0, 1, exclude_max=True),
)
def test_filters_agree_with_a_plain_reference(
    logits: list[float], temperature: float, top_p: float, top_k: int, min_p: float, chance: float
) -> None:
    settings = sampling(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    kept = reference_kept(logits, settings)
    token = one(logits, settings, chance)
    assert token in kept
    near = [reference_token(logits, settings, min(max(chance + step, 0.0), 1 - 2**-53)) for step in (-1e-6, 0, 1e-6)]
    assert token in near


def test_no_filter_keeps_less_than_the_best() -> None:
    logits = [0.0, 5.0, 5.0, 1.0]
    for settings in (
        sampling(temperature=1.0, top_p=0.0),
        sampling(temperature=1.0, top_k=1),
    ):
        assert {one(logits, settings, chance) for chance in (0.0, 0.5, 1 - 2**-53)} == {1}
    assert {one(logits, sampling(temperature=1.0, min_p=1.0), chance) for chance in (0.0, 0.999)} == {1, 2}


@pytest.mark.parametrize("temperature", [1e-30, 1e-5, 1e30])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    token = one([0.0, 1e4, -1e4], sampling(temperature=temperature, top_p=0.9), 0.3)
    assert token == (0 if temperature > 1 else 1)


@given(st.lists(st.sampled_from(range(6)), min_size=1, max_size=6), st.integers(0, 2**32))
def test_a_row_does_not_depend_on_its_neighbours(kinds: list[int], seed: int) -> None:
    """Any mix of settings gives each row the token and log-probabilities that it gets alone, to the bit."""
    table = [
        sampling(),
        sampling(temperature=0.8),
        sampling(temperature=1.2, top_p=0.7, logprobs=3),
        sampling(temperature=1.0, top_k=4, repetition=1.3),
        sampling(temperature=0.9, min_p=0.1, bias=((2, 3.0),), logprobs=0),
        sampling(presence=0.5, frequency=0.25, logprobs=5),
    ]
    width = 300
    logits = torch.randn(len(kinds), width, generator=torch.Generator().manual_seed(seed)) * 3
    settings = [table[kind] for kind in kinds]

    def drawn(row: int) -> Draw:
        return draw(settings[row], uniform(seed, 0, row), prompt=(2, 5), outputs=(7, 7, 9), width=width)

    together = sample(logits, [drawn(row) for row in range(len(kinds))])
    tokens = together.tokens.tolist()
    entries = token_logprobs(together, settings, tokens)
    for row in range(len(kinds)):
        alone = sample(logits[row : row + 1], [drawn(row)])
        assert alone.tokens.tolist() == [tokens[row]]
        assert token_logprobs(alone, settings[row : row + 1], [tokens[row]]) == [entries[row]]


def test_penalties_count_prompt_and_output_as_documented() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5, 1.0]])
    settings = sampling(repetition=2.0, presence=0.25, frequency=0.5, logprobs=4)
    drawn = draw(settings, prompt=(0, 1), outputs=(2, 2), width=4)
    sampled = sample(logits, [drawn])
    entries = token_logprobs(sampled, [settings], sampled.tokens.tolist())
    expected = torch.log_softmax(torch.tensor([1.0, -2.0, 0.25 - 1.0 - 0.25, 1.0]), -1)
    assert entries[0] is not None
    got = torch.empty(4)
    got[list(entries[0].top_tokens)] = torch.tensor(entries[0].top_logprobs)
    torch.testing.assert_close(got, expected)
    assert float(logits[0, 0]) == 2.0


def test_penalties_count_what_was_sampled_since() -> None:
    drawn = draw(sampling(frequency=1.0), width=3)
    assert drawn.sequence.penalties is not None
    logits = torch.tensor([[1.5, 1.0, 0.0]])
    tokens: list[int] = []
    for _ in range(4):
        sampled = sample(logits, [drawn])
        drawn.sequence.penalties.count(sampled.tokens)
        tokens += sampled.tokens.tolist()
    assert tokens == [0, 1, 0, 1]


def test_bias_and_forbidden_ends() -> None:
    logits = torch.tensor([[0.0, 4.0, 1.0, 2.0]])
    assert sample(logits, [draw(sampling(bias=((2, 100.0),)), width=4)]).tokens.tolist() == [2]
    assert sample(logits, [draw(sampling(bias=((1, -100.0),)), width=4)]).tokens.tolist() == [3]
    for temperature in (0.0, 1.0):
        settings = sampling(temperature=temperature, logprobs=2)
        sampled = sample(logits, [draw(settings, 0.9999999, ends=(1, 3), width=4)])
        assert sampled.tokens.tolist() == [2]
        (entry,) = token_logprobs(sampled, [settings], [2])
        assert entry is not None
        assert entry.top_tokens == (1, 3), "log-probabilities are the model's, before ends are forbidden"
        assert entry.logprob == pytest.approx(float(torch.log_softmax(logits, -1)[0, 2]))


def test_logprobs_are_of_the_distribution_before_temperature_and_filters() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    settings = sampling(temperature=5.0, top_k=1, logprobs=2)
    sampled = sample(logits, [draw(settings, 0.5, width=4)])
    (entry,) = token_logprobs(sampled, [settings], sampled.tokens.tolist())
    expected = torch.log_softmax(logits, -1)[0]
    assert entry is not None
    assert (entry.token, entry.top_tokens) == (2, (2, 1))
    assert entry.logprob == pytest.approx(float(expected[2]))
    assert entry.top_logprobs == pytest.approx((float(expected[2]), float(expected[1])))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_that_are_not_finite_fail_alone(temperature: float, bad: float) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, bad, 1.0], [3.0, 1.0, 2.0]])
    settings = sampling(temperature=temperature, top_p=0.9, logprobs=1)
    sampled = sample(logits, [draw(settings, 0.1, width=3) for _ in range(3)])
    tokens = sampled.tokens.tolist()
    assert tokens[1] == NOT_FINITE
    assert min(tokens[0], tokens[2]) >= 0
    assert [entry is None for entry in token_logprobs(sampled, [settings] * 3, tokens)] == [False, True, False]


def test_a_temperature_that_float32_takes_for_zero_fails_its_row_alone() -> None:
    drawn = draw(sampling(temperature=0.7), 0.1, width=3)
    tokens = sample(torch.tensor([[0.0, 1.0, 2.0]] * 2), [draw(sampling(temperature=1e-60), 0.1, width=3), drawn])
    assert tokens.tokens.tolist()[0] == NOT_FINITE
    assert 0 <= tokens.tokens.tolist()[1] < 3


def test_a_token_of_no_probability_is_never_drawn() -> None:
    logits = [-math.inf, 0.0, -math.inf, 0.0]
    assert {one(logits, sampling(temperature=1.0), chance) for chance in (0.0, 0.49, 0.5, 1 - 2**-53)} == {1, 3}
