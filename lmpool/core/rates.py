"""What a step costs on one rank, as five numbers."""

import attrs


@attrs.frozen
class Rates:
    """Nanoseconds that a step costs: `step + prefill p + prefill_context pc + decode s + decode_context c`.

    p are its prefill tokens, pc the sum over them of the tokens before each, s its decoding sequences, c their
    context tokens.
    """

    step: float
    prefill: float
    prefill_context: float
    decode: float
    decode_context: float
