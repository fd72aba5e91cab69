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

PAGE_TOKENS = 256
"""Page of transformers' continuous batching: its default."""


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
            page_size=PAGE_TOKENS, num_blocks=max(64, pages), max_batch_tokens=1024
        ),
    )
    by_prompt = sorted(answers.values(), key=lambda answer: int(answer.request_id.rsplit("_", 1)[-1]))
    return [list(answer.generated_tokens) for answer in by_prompt]


def main() -> None:
    folder, dtype, threads = sys.argv[1:4]
    torch.set_num_threads(int(threads))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the libraries print must not end up among the answers
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()
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
