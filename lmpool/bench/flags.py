"""Flags of measurements: a parser whose errors are two lines, and numbers that are checked as they are read."""

import argparse
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
