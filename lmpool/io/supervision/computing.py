"""The environment of processes that compute, or hold a pool on the host: variables that libraries read as they load."""

from collections.abc import Mapping

GLIBC = {
    "MALLOC_TOP_PAD_": "536870912",
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "2147483648",
    "GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=65536",
}
"""The first three keep freed buffers in the heap: else each step on CPU pays page faults anew, up to twice its time.

The last lets copies of 64 KiB and more, which are runs of blocks, go past the caches. By default a copy has to be
larger than most of a last-level cache for that; one that is not reads each line of its target before it writes it, and
drives out what steps read. Steps themselves make no such copies: torch does not copy by memcpy.
"""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def computing_environment(environment: Mapping[str, str], threads: int) -> dict[str, str]:
    """What the operator has said of glibc's variables stays; `threads` are ours."""
    return {**GLIBC, **environment, **dict.fromkeys(THREADS, str(threads))}
