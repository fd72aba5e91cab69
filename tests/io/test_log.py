"""Log lines of a process: its name and life on each, JSON when asked, standard error only, nothing set up on import."""

import json
import os
import subprocess
import sys

import pytest

from lmpool.io.log import LogFormat, log_format

PROGRAM = """
import logging, sys
from lmpool.io.log import get_log, set_up_log
log = get_log("link")
log.info("too early to be seen")
set_up_log("worker-1", 4, sys.argv[1])
log.debug("detail")
log.info("peer joined", rank=2)
logging.getLogger("uvicorn").warning("from %s", "elsewhere")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("it broke", step=7)
"""


def lines(level: str, form: str | None) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "LMPOOL_LOG_FORMAT"}
    if form is not None:
        environment["LMPOOL_LOG_FORMAT"] = form
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, level], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_json_when_asked() -> None:
    joined, foreign, broken = map(json.loads, lines("info", "json"))
    assert joined["event"] == "peer joined"
    assert (joined["rank"], joined["process"], joined["epoch"], joined["level"]) == (2, "worker-1", 4, "info")
    assert (foreign["event"], foreign["process"]) == ("from elsewhere", "worker-1")
    assert (broken["step"], broken["level"]) == (7, "error")
    assert "ZeroDivisionError" in broken["exception"]


def test_lines_for_people_otherwise() -> None:
    first, second, *rest = lines("info", None)
    assert "peer joined" in first
    assert "rank=2" in first
    assert "process=worker-1" in first
    assert "\x1b" not in first  # no terminal, no colours
    assert "from elsewhere" in second
    assert rest[-1] == "ZeroDivisionError: division by zero"


def test_levels_are_kept() -> None:
    assert len([line for line in lines("debug", "json") if "detail" in line]) == 1
    assert [json.loads(line)["event"] for line in lines("error", "json")] == ["it broke"]


def test_formats_are_known_by_name() -> None:
    assert log_format({}) is LogFormat.LINES
    assert log_format({"LMPOOL_LOG_FORMAT": "json"}) is LogFormat.JSON
    with pytest.raises(ValueError, match="xml"):
        log_format({"LMPOOL_LOG_FORMAT": "xml"})
