"""What each endpoint takes: the tables that parse requests, make the OpenAPI document and stand in `specs/api.md`."""

from collections.abc import Mapping

from lmpool.core.limits import (
    CHOICES_MAX,
    LABEL_BYTES_MAX,
    LOGIT_BIAS_MAX,
    LOGPROBS_MAX,
    PROMPT_TOKENS_MAX,
    RANKS_MAX,
    STOP_STRINGS_MAX,
    STOP_TOKENS_MAX,
)
from lmpool.core.prefix import HASH_BYTES
from lmpool.io.http.fields import Field, Kind

PROMPTS_MAX = 1024
"""Prompts in one completions call; evaluation programs send some hundred."""

MESSAGES_MAX = 65_536
"""Each takes a few tokens of the context, so a longer chat fits no model."""

TOKENIZED_CHARACTERS_MAX = 1 << 22
"""Of a text, or all messages: some seconds of one thread, of which there are few."""

OUTPUT_TOKENS_DEFAULT = 16
"""Of a completion without `max_tokens`, as in OpenAI's API; a chat has what is left of the context."""

SEED_MIN, SEED_MAX = -(1 << 63), (1 << 63) - 1

SAMPLING_FIELDS = (
    Field("model", Kind.TEXT, 1, None, "the served model", "A name that /v1/models lists."),
    Field("n", Kind.INTEGER, 1, CHOICES_MAX, "1", "Choices per prompt."),
    Field("temperature", Kind.NUMBER, 0, 2, "1", "0 takes the likeliest token, as does what is below 0.000001."),
    Field("top_p", Kind.NUMBER, 0, 1, "1", "Keeps the likeliest tokens up to this share."),
    Field("top_k", Kind.INTEGER, -1, PROMPT_TOKENS_MAX, "0", "Keeps this many tokens; 0 and -1 keep all."),
    Field("min_p", Kind.NUMBER, 0, 1, "0", "Drops tokens below this share of the likeliest."),
    Field("presence_penalty", Kind.NUMBER, -2, 2, "0", "Against tokens that the answer has."),
    Field("frequency_penalty", Kind.NUMBER, -2, 2, "0", "Against tokens, for each time the answer has them."),
    Field("repetition_penalty", Kind.NUMBER, 0.01, 100, "1", "Divides the score of tokens in prompt and answer."),
    Field("logit_bias", Kind.BIASES, -100, 100, "{}", f"Added to scores; at most {LOGIT_BIAS_MAX} tokens."),
    Field(
        "seed",
        Kind.INTEGER,
        SEED_MIN,
        SEED_MAX,
        "drawn",
        "The same seed gives the same choices, but for bfloat16's rounding.",
    ),
    Field("max_tokens", Kind.INTEGER, 0, PROMPT_TOKENS_MAX, "see below", "A wish, cut to what the context holds."),
    Field("min_tokens", Kind.INTEGER, 0, PROMPT_TOKENS_MAX, "0", "No end token and no stop before this many."),
    Field("stop", Kind.TEXTS, 0, STOP_STRINGS_MAX, "[]", "Strings that end an answer and are not part of it."),
    Field("include_stop_str_in_output", Kind.FLAG, None, None, "false", "The stop string is part of the text."),
    Field("stop_token_ids", Kind.TOKENS, 0, STOP_TOKENS_MAX, "[]", "Tokens that end an answer."),
    Field("ignore_eos", Kind.FLAG, None, None, "false", "The model's own end tokens do not end an answer."),
    Field("stream", Kind.FLAG, None, None, "false", "Server-sent events."),
    Field(
        "stream_options",
        Kind.OBJECT,
        None,
        None,
        "{}",
        "`include_usage`: one last event with counts; `continuous_usage_stats`: counts so far in each.",
    ),
    Field("cache_salt", Kind.TEXT, 1, LABEL_BYTES_MAX, "none", "Shares cached prefixes only under the same salt."),
)
"""Of both generation endpoints."""

COMPLETION_FIELDS = (
    Field("prompt", Kind.PROMPT, 1, PROMPTS_MAX, "required", "Several prompts give choices in their order."),
    *SAMPLING_FIELDS,
    Field("logprobs", Kind.INTEGER, 0, LOGPROBS_MAX, "none", "Of each token and of so many best; 0: of each token."),
    Field("echo", Kind.FLAG, None, None, "false", "The prompt is part of the text (and of the log-probabilities)."),
)

CHAT_FIELDS = (
    Field("messages", Kind.MESSAGES, 1, MESSAGES_MAX, "required", "Texts by system, developer, user, assistant."),
    *SAMPLING_FIELDS,
    Field("max_completion_tokens", Kind.INTEGER, 0, PROMPT_TOKENS_MAX, "see below", "Wins over max_tokens."),
    Field("logprobs", Kind.FLAG, None, None, "false", "Log-probabilities of the answer's tokens."),
    Field("top_logprobs", Kind.INTEGER, 0, LOGPROBS_MAX, "0", "So many best tokens as well; needs logprobs."),
)

TOKENIZE_FIELDS = (
    Field("model", Kind.TEXT, 1, None, "the served model", "A name that /v1/models lists."),
    Field("prompt", Kind.TEXT, 0, TOKENIZED_CHARACTERS_MAX, "none", "A text; either this or messages."),
    Field("messages", Kind.MESSAGES, 1, MESSAGES_MAX, "none", "A chat, as it would be asked."),
    Field("add_special_tokens", Kind.FLAG, None, None, "true", "What the tokenizer adds to a text of its own accord."),
    Field("add_generation_prompt", Kind.FLAG, None, None, "true", "The begin of an answer after a chat."),
    Field("return_token_strs", Kind.FLAG, None, None, "false", "The text of each token as well."),
)

DETOKENIZE_FIELDS = (
    Field("model", Kind.TEXT, 1, None, "the served model", "A name that /v1/models lists."),
    Field("tokens", Kind.TOKENS, 0, PROMPT_TOKENS_MAX, "required", "Special tokens stay in the text."),
)

TRANSFER_FIELDS = (
    Field("prompt", Kind.TEXT_OR_TOKENS, 1, None, "none", "What its complete blocks are of."),
    Field("chain", Kind.TEXT, 2 * HASH_BYTES, None, "none", "Or the hashes of the blocks, in hexadecimal."),
    Field("tenant", Kind.TEXT, 1, LABEL_BYTES_MAX, "that of the key", "Whose prompt it is."),
    Field("cache_salt", Kind.TEXT, 1, LABEL_BYTES_MAX, "none", "With which it was cached."),
    Field("source", Kind.INTEGER, 0, RANKS_MAX - 1, "required", "A replica that holds it."),
    Field("target", Kind.INTEGER, 0, RANKS_MAX - 1, "required", "The one that is to hold it."),
    Field("mode", Kind.TEXT, 1, LABEL_BYTES_MAX, "copy", "`copy`, or `move`: the source frees what nobody uses."),
    Field("copy_seconds", Kind.NUMBER, 0.1, 3600, "30", "How long the bytes may take."),
)

UNSUPPORTED_FIELDS: Mapping[str, tuple[object, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "suffix": ("",),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "use_beam_search": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "prompt_embeds": (),
}
"""Fields whose silent absence would change an answer, and the values that ask for nothing. Null never does.

`best_of` is one more: it may only equal `n`.
"""

SILENT_FIELDS = (
    "user",
    "store",
    "metadata",
    "service_tier",
    "parallel_tool_calls",
    "safety_identifier",
    "prompt_cache_key",
)
"""Fields of OpenAI's API that say nothing about the answer: neither refused nor counted as unknown."""

KNOWN_ELSEWHERE = frozenset((*UNSUPPORTED_FIELDS, *SILENT_FIELDS, "best_of"))
"""Not read by an endpoint's table, and yet no unknown fields."""
