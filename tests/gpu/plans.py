"""Plans written by hand, as a worker machine would make them."""

from collections.abc import Iterable, Sequence

from lmpool.core.ids import BlockId, Slot, StepNumber
from lmpool.core.plan import BatchPlan, Row, Runner, SequenceStart, StepResult
from lmpool.core.prefix import pack_tokens
from lmpool.core.sampling import SamplingSettings


def sampling(
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    presence: float = 0.0,
    frequency: float = 0.0,
    repetition: float = 1.0,
    bias: tuple[tuple[int, float], ...] = (),
    logprobs: int | None = None,
) -> SamplingSettings:
    return SamplingSettings(temperature, top_p, top_k, min_p, presence, frequency, repetition, bias, logprobs, seed=0)


def start(
    slot: int,
    prompt: Sequence[int],
    *,
    outputs: Sequence[int] = (),
    settings: SamplingSettings | None = None,
    ends: tuple[int, ...] = (),
    prompt_logprobs: int | None = None,
) -> SequenceStart:
    history = pack_tokens([*prompt, *outputs])
    return SequenceStart(Slot(slot), settings or sampling(), ends, history, len(prompt), prompt_logprobs)


def row(
    slot: int,
    begin: int,
    tokens: Sequence[int],
    blocks: Iterable[int],
    *,
    writes: bool = True,
    samples: bool = True,
    uniform: float = 0.0,
    forbids_end: bool = False,
) -> Row:
    table = tuple(BlockId(block) for block in blocks)
    return Row(Slot(slot), begin, tuple(tokens), table, writes, samples, uniform, forbids_end)


class Steps:
    """Numbers plans and runs them one by one."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._step = 0

    def __call__(
        self, rows: Sequence[Row], starts: Sequence[SequenceStart] = (), departures: Sequence[int] = ()
    ) -> StepResult:
        self._step += 1
        left = tuple(Slot(slot) for slot in departures)
        self._runner.launch(BatchPlan(StepNumber(self._step), left, tuple(starts), tuple(rows)))
        result = self._runner.collect()
        assert result.step == self._step
        assert result.slots == tuple(each.slot for each in rows if each.samples)
        return result
