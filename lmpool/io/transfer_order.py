"""What an operator wants to have copied, or moved, from one replica to another."""

import attrs

from lmpool.core.messages.transfer import TransferMode


@attrs.frozen
class TransferWish:
    prompt: str | tuple[int, ...] | None
    """Its complete blocks. None: those of `chain`."""
    chain: bytes
    """Packed hashes from the first block on."""
    tenant: str
    """Whose prompt it is, and under which salt: nobody else finds its blocks."""
    cache_salt: str | None
    source: int
    target: int
    mode: TransferMode
    copy_s: float
    """How long the copy may take."""
