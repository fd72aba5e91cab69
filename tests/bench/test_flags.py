from pathlib import Path

import pytest

from lmpool.bench.flags import (
    USAGE_CODE,
    Parser,
    block_size,
    count,
    factor,
    factor_from_zero,
    number,
    output,
    output_or_dash,
    profiled,
    scale,
)


@pytest.mark.parametrize(
    ("kind", "text", "fault"),
    [
        (count, "0", "0 is less than 1"),
        (number, "-1", "-1 is less than 0"),
        (factor, "0", "0 is not more than 0"),
        (factor, "inf", "inf is not more than 0"),
        (factor, "nan", "nan is not more than 0"),
        (scale, "1e9", "1e9 is more than 16: no model has prompts that long"),
        (factor_from_zero, "-0.5", "-0.5 is not more than 0"),
        (count, "many", "invalid count value: 'many'"),
        (block_size, "0", "0 is not a power of two from 8 to 512"),
        (block_size, "24", "24 is not a power of two from 8 to 512"),
        (block_size, "1024", "1024 is not a power of two from 8 to 512"),
        (output, "/", "/ is a folder"),
        (output, "/nowhere/figures.json", "/nowhere/figures.json: there is no folder /nowhere"),
        (output_or_dash, "/nowhere/figures.json", "/nowhere/figures.json: there is no folder /nowhere"),
    ],
)
def test_numbers_that_cannot_be_are_two_lines(
    kind: object, text: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = Parser("measure")
    parser.add_argument("--size", type=kind)  # type: ignore[arg-type]
    with pytest.raises(SystemExit) as end:
        parser.parse_args([f"--size={text}"])
    assert end.value.code == USAGE_CODE
    assert capsys.readouterr().err == f"measure: argument --size: {fault}\nsee measure --help\n"


def test_numbers_that_can_be_are_read() -> None:
    assert (count("3"), number("0"), factor("0.5"), factor_from_zero("0"), block_size("16")) == (3, 0, 0.5, 0.0, 16)


def test_files_that_can_be_written_are_left_alone(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("{}")
    assert (output(str(old)), output(str(new)), output_or_dash("-")) == (old, new, "-")
    assert output_or_dash(str(new)) == str(new)
    assert (old.read_text(), new.exists()) == ("{}", False)


@pytest.mark.parametrize(
    ("arguments", "rounds", "sizes"),
    [
        ([], 9, None),
        (["--profile", "full"], 9, None),
        (["--profile", "quick"], 2, [1, 8]),
        (["--rounds", "5", "--profile", "quick"], 5, [1, 8]),
    ],
)
def test_a_quick_profile_has_other_defaults_and_what_is_given_stays(
    arguments: list[str], rounds: int, sizes: list[int] | None
) -> None:
    parser = Parser("measure")
    parser.add_argument("--rounds", type=count, default=9)
    parser.add_argument("--sizes", type=count, nargs="+")
    given = profiled(parser, {"rounds": 2, "sizes": [1, 8]}, arguments)
    assert (given.rounds, given.sizes) == (rounds, sizes)
    assert "first look within two minutes, with rounds 2, sizes 1 8" in " ".join(parser.format_help().split())
