"""An endpoint in this process: the embedded engine, which tells tokens as they are."""

from collections.abc import Callable

import attrs

from lmpool.bench.load.contents import TokenContents
from lmpool.bench.load.endpoint import Ask, Said, Told
from lmpool.bench.load.measured import Piece
from lmpool.core.explanation import request_word
from lmpool.core.ids import Nanos
from lmpool.io.engine import AsyncEngine
from lmpool.io.errors import LMPoolError
from lmpool.io.generation import SamplingParams


@attrs.frozen
class EngineEndpoint:
    engine: AsyncEngine
    contents: TokenContents
    now: Callable[[], Nanos]

    async def ask(self, ask: Ask) -> Told:
        tokens = ask.output_tokens
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, min_tokens=tokens, ignores_eos=True)
        prompt, pieces, text, answer = self._prompt(ask), list[Piece](), "", list[int]()
        cached: int | None = None
        queued_ns: int | None = None
        request = ""
        fault = detail = ""
        sent_ns = self.now()
        try:
            async for chunk in self.engine.generate(prompt, sampling, session=ask.session):
                if chunk.tokens or chunk.text:
                    pieces.append(Piece(self.now(), len(chunk.tokens)))
                answer += chunk.tokens
                text += chunk.text
                cached, queued_ns = chunk.cached_tokens, chunk.queued_ns
                request = request_word(chunk.request)
        except LMPoolError as error:
            fault, detail = f"engine {type(error).__name__}", str(error)
        if not fault and not pieces:
            fault, detail = "no content", "no chunk had any"
        return Told(
            sent_ns=sent_ns,
            pieces=tuple(pieces),
            prompt_tokens=len(prompt),
            cached_tokens=cached,
            output_tokens=len(answer),
            said=Said(text, tuple(answer)),
            fault=fault,
            detail=detail,
            request=request,
            queued_ns=queued_ns,
        )

    def _prompt(self, ask: Ask) -> list[int]:
        prompt: list[int] = []
        for number, parts in enumerate(ask.turns):
            for part in parts:
                prompt += self.contents.tokens(part)
            if number < len(ask.answers):
                prompt += ask.answers[number].tokens
        return prompt
