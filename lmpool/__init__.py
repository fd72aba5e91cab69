"""LMPool: one language model, all accelerators of a machine, one pool of KV caches."""

__version__ = "0.1.0"
