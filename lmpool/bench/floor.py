"""What no step can beat on this machine, measured in a process of its own with the same threads."""

import json
import os
import subprocess
import sys

import attrs

CHILD = "import lmpool.bench.peers as peers; peers.print_floor()"


@attrs.frozen
class Floor:
    bytes_per_s: float
    """Reading memory once."""
    flops_per_s: float
    """A square product in the model's dtype."""
    weight_bytes: int
    """Read by every decode step."""
    flops_per_token: int
    """2 a weight that multiplies; attention and the output layer not counted."""
    kv_bytes_per_token: int


def measure_floor(folder: str, dtype: str, threads: int) -> Floor:
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), HF_HUB_OFFLINE="1")
    command = [sys.executable, "-c", CHILD, folder, dtype, str(threads)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    return Floor(**json.loads(done.stdout))
