"""Which blocks to bring where, what that takes, and whether it pays. `specs/placement.md`."""
