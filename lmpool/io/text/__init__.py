"""Text and tokens of a model folder: tokenizer, chat template, incremental decoding, stop strings."""
