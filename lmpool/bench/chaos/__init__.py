"""A server under load whose processes are killed, stopped and started again, and what became of every request."""
