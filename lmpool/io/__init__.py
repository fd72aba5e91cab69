"""Asyncio adapters: sockets, processes, HTTP. They feed machines, perform their effects and decide nothing."""
