from pathlib import Path

import pytest

from lmpool.bench.trial.kept import last_line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ready\nno model x\n\n", "no model x"),
        ("ready\nno model x\n  hint: check the path\n", "no model x; hint: check the path"),
        ("hint: check the path", "hint: check the path"),
        ("\n", "it said nothing"),
        (None, "it said nothing"),
    ],
)
def test_the_last_words_of_a_trial_have_the_cause(tmp_path: Path, text: str | None, told: str) -> None:
    log = tmp_path / "trial.log"
    if text is not None:
        log.write_text(text)
    assert last_line(log) == told
