"""All settings of a server: knobs, their tree, and where values come from."""
