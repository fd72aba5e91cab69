"""A folder of the integer model whose tokens are bytes: what it has to answer can be computed from the prompt alone."""

import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from lmpool.sim.integer_model import ARCHITECTURE

BYTES = 256
BEGIN, END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
SPECIALS = (BEGIN, END, END_OF_TEXT)
"""Tokens 256 to 258."""
VOCABULARY = BYTES + len(SPECIALS)
ENDS = (BYTES + SPECIALS.index(END), BYTES + SPECIALS.index(END_OF_TEXT))
TOKENS_MAX = 2048

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_byte_folder(path: Path, facts: Mapping[str, object]) -> Path:
    """Everything of a model folder but weights. `facts`: further keys of its config.json (`sim/integer_model.py`), or
    other values."""
    path.mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE({character: byte for byte, character in enumerate(_characters())}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "architectures": [ARCHITECTURE],
        "vocab_size": VOCABULARY,
        "max_position_embeddings": TOKENS_MAX,
        "eos_token_id": list(ENDS),
        **facts,
    }
    (path / "config.json").write_text(json.dumps(config, indent=1))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": list(ENDS)}))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


def _characters() -> list[str]:
    """What stands for each byte in a byte-level vocabulary: itself where it can be printed, else the next spare one."""
    printable = set(pre_tokenizers.ByteLevel.alphabet())
    spare = count(BYTES)
    return [chr(byte) if chr(byte) in printable else chr(next(spare)) for byte in range(BYTES)]
