"""Copies and moves of KV blocks between ranks, as transactions. `specs/transfer.md`."""
