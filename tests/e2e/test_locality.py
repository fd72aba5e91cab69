"""The routing benchmark itself, on exact integers: its counters close and locality shows."""

import json
import subprocess
import sys
from pathlib import Path

from tests.e2e.server import ROOT


def test_the_default_policy_recomputes_less_than_round_robin(integer_folder: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "lmpool", "bench", "locality", str(integer_folder), "--vocabulary", "300"]
    command += ["--sessions", "5", "--turns", "4", "--scale", "0.05", "--seed", "1", "--budget", "1.0"]
    done = subprocess.run(
        [*command, "--json", str(figures)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=100
    )
    baseline, ours = json.loads(figures.read_text())
    assert (baseline["policy"], ours["policy"]) == ("round-robin", "default")
    assert baseline["workload"] == ours["workload"]
    assert sum(baseline["routed"]) == sum(ours["routed"]) == 20
    assert ours["computed_tokens"] + ours["cached_tokens"] >= 20
    assert ours["computed_tokens"] < baseline["computed_tokens"]
    assert "ratio" in done.stdout
