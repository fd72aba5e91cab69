"""Asyncio adapters: sockets, processes, HTTP. They feed the core's machines, perform their effects and decide nothing."""
