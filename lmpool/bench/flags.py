"""Flags of measurements: a parser whose errors are two lines, numbers that are checked as they are read, profiles."""

import argparse
from collections.abc import Mapping, Sequence
from typing import NoReturn

from typing_extensions import override

USAGE_CODE = 2


class Parser(argparse.ArgumentParser):
    @override
    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_CODE, f"{self.prog}: {message}\nsee {self.prog} --help\n")


def count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def number(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return value


def factor(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return value


def factor_from_zero(text: str) -> float:
    return 0.0 if float(text) == 0 else factor(text)


def profiled(
    parser: argparse.ArgumentParser, quick: Mapping[str, object], arguments: Sequence[str]
) -> argparse.Namespace:
    """Flags with `--profile`: quick has other defaults, for a first look within two minutes on a processor."""
    parser.add_argument(
        "--profile",
        choices=("quick", "full"),
        default="full",
        help=f"quick: a first look within two minutes, with {_in_words(quick)} (default %(default)s)",
    )
    given = parser.parse_args(arguments)
    if given.profile == "quick":
        parser.set_defaults(**quick)
        given = parser.parse_args(arguments)
    return given


def _in_words(quick: Mapping[str, object]) -> str:
    values = {
        name: " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in quick.items()
    }
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
