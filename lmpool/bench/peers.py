"""Transformers' own batching, as a peer process (`peer.py` has its protocol). Only this module of `bench` knows torch.

Usage: `python -m lmpool.bench.peers FOLDER DTYPE THREADS`.
"""

import json
import os
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from lmpool.gpu.calibrate import measure_floors

PAGE_TOKENS = 256
"""Page of transformers' continuous batching: its default."""
PAGES_MIN = 64
STEP_TOKENS = 1024
"""Settings of the peer: with the sizes that it chooses itself it needs many gigabytes and is slower."""


def _load(folder: str, dtype: str, threads: str) -> Any:
    torch.set_num_threads(int(threads))
    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()


def _generate(model: Any, how: str, prompts: list[list[int]], output_tokens: int) -> list[list[int]]:
    if how == "static":
        inputs = torch.tensor(prompts)
        outputs = model.generate(
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            generation_config=GenerationConfig(
                max_new_tokens=output_tokens, min_new_tokens=output_tokens, do_sample=False, pad_token_id=0
            ),
        )
        tokens: list[list[int]] = outputs[:, inputs.shape[1] :].tolist()
        return tokens
    longest = max(len(prompt) for prompt in prompts) + output_tokens
    pages = sum(-(-(len(prompt) + output_tokens) // PAGE_TOKENS) for prompt in prompts) + -(-longest // PAGE_TOKENS)
    answers = model.generate_batch(
        inputs=prompts,
        generation_config=GenerationConfig(
            max_new_tokens=output_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=PAGE_TOKENS, num_blocks=max(PAGES_MIN, pages), max_batch_tokens=STEP_TOKENS
        ),
    )
    return [list(answer.generated_tokens) for answer in answers.values()]


def print_floor() -> None:
    """The fields of `floor.Floor` as JSON, for FOLDER DTYPE THREADS."""
    model = _load(*sys.argv[1:4])
    floors = measure_floors(torch.device("cpu"), model.dtype)
    config = model.config
    head = model.get_output_embeddings().weight
    embeddings = (head, model.get_input_embeddings().weight)
    body = [weight for weight in model.parameters() if not any(weight is other for other in embeddings)]
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim
    floor = {
        "bytes_per_s": floors.read_bytes_per_s,
        "flops_per_s": floors.matrix_flops_per_s,
        "weight_bytes": sum(weight.numel() * weight.element_size() for weight in [*body, head]),
        "flops_per_token": 2 * sum(weight.numel() for weight in body if weight.dim() > 1),
        "kv_bytes_per_token": numbers * model.dtype.itemsize,
    }
    print(json.dumps(floor))


def main() -> None:
    folder, dtype, threads = sys.argv[1:4]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the libraries print must not end up among the answers
    model = _load(folder, dtype, threads)
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        with torch.inference_mode():
            began = time.monotonic()
            tokens = _generate(model, question["how"], question["prompts"], question["output_tokens"])
            seconds = time.monotonic() - began
        answer = {"seconds": seconds, "output_tokens": sum(map(len, tokens)), "tokens": tokens}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
