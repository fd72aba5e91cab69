"""Flags of measurements: a parser whose errors are two lines, numbers that are checked as they are read, profiles."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from typing_extensions import override

from lmpool.core.limits import BLOCK_SIZE_MAX, BLOCK_SIZE_MIN

USAGE_CODE = 2
INTERRUPTED_CODE = 130
SCALE_MAX = 16.0


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


def scale(text: str) -> float:
    """Of lengths: those of made workloads are thousands of tokens already."""
    value = factor(text)
    if value > SCALE_MAX:
        raise argparse.ArgumentTypeError(f"{text} is more than {SCALE_MAX:.0f}: no model has prompts that long")
    return value


def factor_from_zero(text: str) -> float:
    return 0.0 if float(text) == 0 else factor(text)


def block_size(text: str) -> int:
    value = int(text)
    if not BLOCK_SIZE_MIN <= value <= BLOCK_SIZE_MAX or value & (value - 1):
        raise argparse.ArgumentTypeError(f"{text} is not a power of two from {BLOCK_SIZE_MIN} to {BLOCK_SIZE_MAX}")
    return value


def output(text: str) -> Path:
    """A file that can be written, which is better known before anything is measured."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written")
    return path


def output_or_dash(text: str) -> str:
    """Or `-`, which is the standard output."""
    return text if text == "-" else str(output(text))


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
