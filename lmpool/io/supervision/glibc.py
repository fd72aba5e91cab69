"""How processes that hold a pool on the host let glibc treat memory: variables that it reads when they start."""

VARIABLES = {
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
