"""Tiny model folders for fast tests: a byte-level tokenizer, a chat template and a configuration, without weights."""

import json
from collections.abc import Mapping
from pathlib import Path

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"

MERGES = (
    "t h,th e,Ġ the,i n,Ġ a,o n,r e,e r,Ġ s,Ġ w,o r,o u,Ġ b,i s,Ġ c,Ġ f,a t,e n,Ġ m,Ġ p,a n,Ġ o,e s,i t,l l,Ġ d,in g,"
    "Ġ h,l o,h e,he ll,hell o,Ġ w,or l,worl d,w orl,Ġ is,Ġo f,a l,e d,Ġ in,Ġ t,Ġt o,u s,us er,s t,a s,as s,ass is,"
    "assis t,an t,assist ant,s y,sy st,syst em,e m,c i,p i,t al"
)
"""Enough for tokens of one to nine characters; the merges are in order of rank."""

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

INTEGER_MODEL = "LMPoolIntegerModel"

MODEL_TYPES = {
    INTEGER_MODEL: "lmpool_integer",
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MistralForCausalLM": "mistral",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
TINY_SHAPE: Mapping[str, object] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "dtype": "float32",
}


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (chr(256 + index) for index in range(256))
    return [chr(byte) if byte in printable else next(others) for byte in range(256)]


def tiny_vocabulary() -> dict[str, int]:
    """Bytes 0 to 255 under their own numbers, merged tokens after them, then the three special tokens."""
    vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
    for merge in MERGES.split(","):
        vocabulary.setdefault(merge.replace(" ", ""), len(vocabulary))
    for special in (END_OF_TEXT, IM_START, IM_END):
        vocabulary[special] = len(vocabulary)
    return vocabulary


def tiny_tokenizer() -> dict[str, object]:
    """The content of `tokenizer.json`."""
    vocabulary = tiny_vocabulary()
    specials = (END_OF_TEXT, IM_START, IM_END)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    merges = list(dict.fromkeys(MERGES.split(",")))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": vocabulary[special], "content": special, **flags} for special in specials],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: index for token, index in vocabulary.items() if token not in specials},
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def write_tiny_folder(
    path: Path,
    architecture: str = INTEGER_MODEL,
    *,
    template: str | None = CHATML,
    model_tokens_max: int = 4096,
    config: Mapping[str, object] | None = None,
) -> Path:
    """Writes everything of a converted model folder but weights to `path`, and returns it.

    `config` adds to or replaces entries of config.json (`step_ns` for the integer model, layers for a real one).
    """
    vocabulary = tiny_vocabulary()
    files: dict[str, object] = {
        "config.json": {
            "architectures": [architecture],
            "model_type": MODEL_TYPES[architecture],
            "vocab_size": len(vocabulary),
            "max_position_embeddings": model_tokens_max,
            "bos_token_id": vocabulary[END_OF_TEXT],
            "eos_token_id": vocabulary[IM_END],
            **({} if architecture == INTEGER_MODEL else TINY_SHAPE),
            **(config or {}),
        },
        "generation_config.json": {
            "bos_token_id": vocabulary[END_OF_TEXT],
            "eos_token_id": [vocabulary[IM_END], vocabulary[END_OF_TEXT]],
        },
        "tokenizer.json": tiny_tokenizer(),
        "tokenizer_config.json": {
            "bos_token": END_OF_TEXT,
            "eos_token": IM_END,
            "pad_token": IM_END,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    }
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (path / name).write_text(json.dumps(content, indent=1))
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    return path
