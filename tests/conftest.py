"""Profiles of hypothesis: `quick` while working, `ci` in tools/test, `soak` for long hunts.

`--hypothesis-profile=NAME` or the variable HYPOTHESIS_PROFILE chooses.
"""

import os

from hypothesis import HealthCheck, settings

SLOW_MACHINES = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("quick", max_examples=30, stateful_step_count=30, deadline=None, derandomize=True)
settings.register_profile(
    "ci",
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=SLOW_MACHINES,
    print_blob=True,
)
settings.register_profile(
    "soak",
    max_examples=600,
    stateful_step_count=80,
    deadline=None,
    suppress_health_check=SLOW_MACHINES,
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
