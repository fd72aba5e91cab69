"""What the ingress process asks of its system."""

import resource
import subprocess
import sys

SCRIPT = """
import resource
from lmpool.io.ingress_process import raise_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
told = raise_open_files()
assert told == raise_open_files() == resource.getrlimit(resource.RLIMIT_NOFILE)[0], told
print(told)
"""


def open_files(hard: int) -> int:
    """Of a process that begins with 64 and may have `hard`."""
    ran = subprocess.run([sys.executable, "-c", SCRIPT.format(hard=hard)], capture_output=True, text=True, check=True)
    return int(ran.stdout)


def test_it_may_have_as_many_files_open_as_it_is_allowed_to_ask_for() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 2_000 if hard == resource.RLIM_INFINITY else min(hard, 2_000)
    assert [open_files(64), open_files(most)] == [64, most]
