"""A virtual-time world that drives the same machines as production."""
