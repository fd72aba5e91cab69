"""The pool under faults: every seed draws another cluster, load and series of accidents, and every law is checked."""
