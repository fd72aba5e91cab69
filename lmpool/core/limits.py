"""Bounds that hold everywhere, each with the reason for its size. Settings may be stricter, never looser."""

BLOCK_SIZE_MIN = 8
BLOCK_SIZE_MAX = 512
"""Below 8 tokens the hashes outweigh what they save; above 512 hardly any prefix ends on a block edge."""

RANKS_MAX = 64
"""Holders are bits of one int; 64 is four times the largest single machine we know of."""

PROMPT_TOKENS_MAX = 1 << 20
"""One million tokens: 4 MiB packed, far below `FRAME_BYTES_MAX`."""

FRAME_BYTES_MAX = 64 << 20
"""The largest message is a submit with a million tokens (4 MiB) and its outputs so far; 64 MiB leaves room."""

CHOICES_MAX = 128
"""`n` of a request; the OpenAI service allows 128."""

STOP_STRINGS_MAX = 16
STOP_STRING_CHARACTERS_MAX = 1024
STOP_TOKENS_MAX = 128
LOGIT_BIAS_MAX = 1024
LOGPROBS_MAX = 20
"""Request fields; the OpenAI service allows 4 stop strings, 20 log-probabilities and 300 biases."""

LABEL_BYTES_MAX = 256
"""Session names and request labels from clients."""

PRIORITY_MIN = -8
PRIORITY_MAX = 8
"""Priority classes; a lower number is served first and 0 is usual."""

ROUTE_ATTEMPTS_MAX = 3
"""How often the ingress asks again after a worker refused."""

REPORT_HASHES_MAX = 65_536
"""Hashes in one part of a full report (1 MiB), so that no report stalls a link."""

HISTORIES_KEPT = 1024
"""Requests whose course an ingress keeps after their end: as many as decisions, in about 1 MB."""

DECISIONS_KEPT = 1024
"""Decisions that control keeps for inspection: a few minutes of a busy server in about 5 MB."""

TRANSFER_BLOCKS_MAX = 16_384
"""Blocks that one transfer copies: 262,144 tokens at 16 tokens a block; ids and generations take 300 kB of JSON."""

TRANSFERS_TOLD = 64
"""Transfers that are over and that control still tells of: the last of each pair of a small machine, in 10 kB."""
