"""A model that computes nothing and takes its time: replicas are real processes whose steps and copies last as those of
an accelerator would, so that more of them than there are cores can be watched at work.

`specs/trials.md` has its figures.
"""

from pathlib import Path

import attrs

from lmpool.bench.byte_model import write_byte_folder
from lmpool.sim.copy_time import assumed_copies
from lmpool.sim.step_time import ACCELERATOR_DEFAULT, named_rates

SLOWNESS = 40
"""Times the accelerator of `specs/step_time.md`: what more processes than cores take is then a small part of a first
token's time."""
COPY_BLOCK_TOKENS = 16
TOKENS_MAX = 131_072
KV_SHAPE = {"num_hidden_layers": 32, "num_attention_heads": 5, "num_key_value_heads": 5, "hidden_size": 320}
"""Blocks of so many bytes have, before anything was copied, about the price that copies here turn out to take."""


def write_paced_folder(path: Path) -> Path:
    rates = {f"{name}_ns": SLOWNESS * rate for name, rate in attrs.asdict(named_rates(ACCELERATOR_DEFAULT)).items()}
    copies = assumed_copies(COPY_BLOCK_TOKENS)
    facts = {
        **rates,
        **KV_SHAPE,
        "copy_block_ns": round(SLOWNESS * copies.block),
        "max_position_embeddings": TOKENS_MAX,
    }
    return write_byte_folder(path, facts)
