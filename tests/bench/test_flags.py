import pytest

from lmpool.bench.flags import USAGE_CODE, Parser, count, factor, factor_from_zero, number, profiled


@pytest.mark.parametrize(
    ("kind", "text", "fault"),
    [
        (count, "0", "0 is less than 1"),
        (number, "-1", "-1 is less than 0"),
        (factor, "0", "0 is not more than 0"),
        (factor, "inf", "inf is not more than 0"),
        (factor, "nan", "nan is not more than 0"),
        (factor_from_zero, "-0.5", "-0.5 is not more than 0"),
        (count, "many", "invalid count value: 'many'"),
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
    assert (count("3"), number("0"), factor("0.5"), factor_from_zero("0")) == (3, 0, 0.5, 0.0)


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
