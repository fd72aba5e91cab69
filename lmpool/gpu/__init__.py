"""Models and KV tensors with torch. Executes plans that it did not make; no asyncio, no policy."""
