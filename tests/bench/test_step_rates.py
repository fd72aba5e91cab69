"""Step times by name: accelerators, files of rates, and calibrations."""

import json
from pathlib import Path

import attrs
import pytest

from lmpool import cli
from lmpool.bench.step_rates import rates_named
from lmpool.core.rates import Rates
from lmpool.io.calibration import calibration_text
from lmpool.sim.step_time import ACCELERATOR_DEFAULT, StepTimeError
from tests.io.test_calibration import CALIBRATION


def test_rates_are_read_by_name_from_a_profile_or_from_a_calibration(tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    names = [field.name for field in attrs.fields(Rates)]
    profile.write_text(json.dumps({f"{name}_ns": place for place, name in enumerate(names, start=1)}))
    assert rates_named(str(profile)) == Rates(1, 2, 3, 4, 5)
    assert rates_named(None) == rates_named(ACCELERATOR_DEFAULT)
    calibration = tmp_path / "calibration.json"
    calibration.write_bytes(calibration_text(CALIBRATION))
    assert rates_named(str(calibration)) == CALIBRATION.rates
    with pytest.raises(StepTimeError, match="no file that can be read"):
        rates_named(str(tmp_path / "none"))
    profile.write_text("[]")
    with pytest.raises(StepTimeError, match="no profile"):
        rates_named(str(profile))
    profile.write_text('{"schema": 1}')
    with pytest.raises(StepTimeError, match=r"needs the numbers .*; nor is it what lmpool calibrate writes: .*rates"):
        rates_named(str(profile))


def test_a_simulation_takes_as_long_as_a_calibration_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibration, results = tmp_path / "calibration.json", tmp_path / "results.json"
    calibration.write_bytes(calibration_text(CALIBRATION))
    flags = ["workload:single-turn", "--requests", "8", "--policy", "default", "--profile", str(calibration)]
    assert cli.main(["simulate", *flags, "--json", str(results)]) == 0
    assert json.loads(results.read_bytes())["rack"]["rates"] == attrs.asdict(CALIBRATION.rates)
