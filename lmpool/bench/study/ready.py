"""Plans that come with the package, by name."""

from importlib.resources import files
from pathlib import Path

from lmpool.bench.study.plan import Plan
from lmpool.bench.study.plan_text import PlanError, parse_plan

SUFFIX = ".toml"


def ready_names() -> list[str]:
    return sorted(
        file.name.removesuffix(SUFFIX) for file in files(__package__).joinpath("plans").iterdir() if SUFFIX in file.name
    )


def plan_bytes(name: str) -> bytes:
    """Of a file, or of a ready plan. Raises PlanError."""
    if name in ready_names():
        return files(__package__).joinpath("plans", name + SUFFIX).read_bytes()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        known = ", ".join(ready_names())
        raise PlanError(f"{name}: {error.strerror}; ready plans are {known}") from error


def ready_plan(name: str) -> Plan:
    return parse_plan(plan_bytes(name), name)
