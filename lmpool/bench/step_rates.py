"""Step times by a name that a user gives: of an accelerator, or of a file with rates or a calibration."""

from pathlib import Path

from lmpool.core.rates import Rates
from lmpool.io.calibration import CalibrationError, read_calibration
from lmpool.sim.step_time import ACCELERATOR_DEFAULT, ACCELERATORS, StepTimeError, named_rates, read_profile


def rates_named(name: str | None) -> Rates:
    """None: as usual. Raises StepTimeError."""
    if name is None or name in ACCELERATORS:
        return named_rates(name or ACCELERATOR_DEFAULT)
    path = Path(name)
    try:
        return read_profile(path)
    except StepTimeError as error:
        if not path.is_file():
            raise
        fault = str(error)
    try:
        return read_calibration(path).rates
    except CalibrationError as error:
        raise StepTimeError(f"{fault}; nor is it what lmpool calibrate writes: {error}") from error
