"""Starts, watches, restarts and ends the processes of one run."""
