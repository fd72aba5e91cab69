"""Pure state machines: no clock, no chance, no input or output. See specs/architecture.md."""
