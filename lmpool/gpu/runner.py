"""Executes plans: one flattened forward pass a step, then sampling for the rows that want a token."""

from collections import deque
from collections.abc import Sequence

import attrs
import numpy as np
import torch

from lmpool.core.ids import Slot, StepNumber
from lmpool.core.plan import BatchPlan, PromptLogprobs, Row, SequenceStart, StepResult, TokenLogprobs
from lmpool.gpu.cuda_graphs import DecodeGraphs
from lmpool.gpu.kv_pool import KVPool
from lmpool.gpu.layout import StepLayout, Workspace
from lmpool.gpu.model import Decoder
from lmpool.gpu.sampler import Draw, Sampled, SequenceSampling, described, downloaded, sample, token_logprobs
from lmpool.gpu.staging import download, upload

SLOTS_AT_FIRST = 256

LOGIT_ROWS_MAX = 64
"""Prompt positions scored at a time: 64 rows of 150,000 float32 logits are 38 MB."""


@attrs.frozen
class ScoredPrompt:
    """Prompt log-probabilities of one row; parallel runs of positions, on their way to the host."""

    slot: Slot
    start: int
    tokens: tuple[int, ...]
    count: int
    """How many of the best are wanted."""
    runs: tuple[list[torch.Tensor], ...]


@attrs.frozen
class Launched:
    step: StepNumber
    slots: tuple[Slot, ...]
    draws: tuple[Draw, ...]
    sampled: Sampled | None
    """None: no row samples."""
    scored: tuple[ScoredPrompt, ...]
    done: torch.cuda.Event | None
    """None where a launch blocks."""


class PromptScoring:
    """The prompt of a sequence whose prompt tokens are to be scored."""

    def __init__(self, start: SequenceStart, count: int) -> None:
        self.prompt = np.frombuffer(start.history, dtype="<u4")[: start.prompt_tokens].astype(np.int64)
        self.count = count


class TorchRunner:
    """`core.plan.Runner` with torch. On CUDA a launch only queues work, and tokens stay on the device."""

    def __init__(self, decoder: Decoder, pool: KVPool) -> None:
        self._decoder = decoder
        self._pool = pool
        self._workspace = Workspace(pool)
        self._device = pool.tensor.device
        self._sequences: dict[Slot, SequenceSampling] = {}
        self._scorings: dict[Slot, PromptScoring] = {}
        self._last = torch.zeros(SLOTS_AT_FIRST, dtype=torch.int64, device=self._device)
        """By slot: the last token sampled."""
        self._launched: deque[Launched] = deque()
        captures = self._device.type == "cuda" and decoder.facts.captures
        self._graphs = DecodeGraphs(decoder, pool) if captures else None

    @torch.inference_mode()
    def launch(self, plan: BatchPlan) -> None:
        self._admit(plan)
        layout = StepLayout(plan.rows, self._pool, self._workspace, shares=self._decoder.facts.shares_prefixes)
        self._continue(plan.rows, layout)
        hidden = self._hidden(layout)
        scored = tuple(
            self._score(row, hidden[first : first + row.length])
            for row, first in zip(plan.rows, layout.firsts, strict=True)
            if row.slot in self._scorings and row.start + 1 < len(self._scorings[row.slot].prompt)
        )
        sampling = [(row, first) for row, first in zip(plan.rows, layout.firsts, strict=True) if row.samples]
        slots = tuple(row.slot for row, _ in sampling)
        draws = tuple(Draw(self._sequences[row.slot], row.uniform, row.forbids_end) for row, _ in sampling)
        sampled = None
        if sampling:
            ends = upload(np.array([first + row.length - 1 for row, first in sampling]), self._device)
            sampled = sample(self._decoder.logits(hidden[ends]), draws)
            self._remember(slots, draws, sampled.tokens)
            sampled = downloaded(sampled)
        self._launched.append(Launched(plan.step, slots, draws, sampled, scored, self._mark()))

    def _hidden(self, layout: StepLayout) -> torch.Tensor:
        if self._graphs is not None and self._graphs.takes(layout):
            return self._graphs.hidden(layout)
        return self._decoder.hidden(layout)

    def collect(self) -> StepResult:
        launched = self._launched.popleft()
        if launched.done is not None:
            launched.done.synchronize()
        tokens: list[int] = []
        entries: list[TokenLogprobs | None] = []
        if launched.sampled is not None:
            tokens = launched.sampled.tokens.tolist()
            entries = token_logprobs(launched.sampled, [draw.sequence.settings for draw in launched.draws], tokens)
        prompts = tuple(_prompt_logprobs(scored) for scored in launched.scored)
        return StepResult(launched.step, launched.slots, tuple(tokens), tuple(entries), prompts)

    def _admit(self, plan: BatchPlan) -> None:
        for slot in plan.departures:
            self._sequences.pop(slot, None)
            self._scorings.pop(slot, None)
        for start in plan.starts:
            while start.slot >= len(self._last):
                self._last = torch.cat((self._last, torch.zeros_like(self._last)))
            self._sequences[start.slot] = SequenceSampling(start, self._decoder.facts.vocabulary, self._device)
            if start.prompt_logprobs is not None:
                self._scorings[start.slot] = PromptScoring(start, start.prompt_logprobs)

    def _continue(self, rows: Sequence[Row], layout: StepLayout) -> None:
        """Puts the last sampled tokens where rows ask for them."""
        places = [first for row, first in zip(rows, layout.firsts, strict=True) if not row.tokens]
        if places:
            slots = upload(np.array([row.slot for row in rows if not row.tokens]), self._device)
            layout.tokens[0, upload(np.array(places), self._device)] = self._last[slots]

    def _remember(self, slots: tuple[Slot, ...], draws: tuple[Draw, ...], tokens: torch.Tensor) -> None:
        # the input of a row that was planned before its token was known not to be finite: any token will do
        self._last[upload(np.array(slots), self._device)] = tokens.clamp_min(0)
        for index, draw in enumerate(draws):
            if draw.sequence.penalties is not None:
                draw.sequence.penalties.count(tokens[index : index + 1])

    def _score(self, row: Row, hidden: torch.Tensor) -> ScoredPrompt:
        scoring = self._scorings[row.slot]
        tokens = scoring.prompt[row.start + 1 : row.start + row.length + 1]
        targets = upload(tokens, self._device)
        runs = tuple(
            [
                download(each)
                for each in described(self._decoder.logits(hidden[at : at + len(part)]), part, scoring.count)
            ]
            for at, part in zip(range(0, len(tokens), LOGIT_ROWS_MAX), targets.split(LOGIT_ROWS_MAX), strict=True)
        )
        return ScoredPrompt(row.slot, row.start + 1, tuple(tokens.tolist()), scoring.count, runs)

    def _mark(self) -> torch.cuda.Event | None:
        if self._device.type == "cpu":
            return None
        event = torch.cuda.Event()
        event.record()
        return event


def _prompt_logprobs(scored: ScoredPrompt) -> PromptLogprobs:
    chosen, best_tokens, best = ([value for run in scored.runs for value in run[field].tolist()] for field in range(3))
    entries = tuple(
        TokenLogprobs(token, chosen[at], tuple(best_tokens[at]), tuple(best[at]))
        for at, token in enumerate(scored.tokens)
    )
    return PromptLogprobs(scored.slot, scored.start, entries)
