"""Data paths: how the bytes of KV blocks get from the pool of one replica into that of another."""
