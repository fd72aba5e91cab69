"""The program `lmpool`, and the only place where io meets gpu. Heavy imports stand where they are needed."""

import json
import os
import sys
import time
from pathlib import Path

from lmpool.core.ids import SECOND, Nanos
from lmpool.core.plan import Replica, ReplicaError
from lmpool.io.bodies import Ports, Say, run_body
from lmpool.io.orders import PrepareOrder, WorkerOrder
from lmpool.sim.integer_model import ARCHITECTURE, integer_replica

CUT_OFF_CODE = 141
"""As a shell has it for a program that ends by SIGPIPE."""
MODEL_HINT = "install the model packages: pip install 'lmpool[model]'"


def load_replica(order: WorkerOrder, progress: Say) -> Replica:
    """Raises ReplicaError."""
    if _is_integer_model(Path(order.model_folder)):
        return integer_replica(order, _pause)
    progress("importing torch and transformers")
    try:
        from lmpool.gpu.replica import load_replica as load
    except ImportError as error:
        raise ReplicaError(f"a library of the model cannot be loaded: {error}", MODEL_HINT) from error
    return load(order, progress)


def prepare(order: PrepareOrder, progress: Say) -> Path:
    """Raises ReplicaError."""
    if order.model is not None and _is_integer_model(Path(order.model)):
        return Path(order.model).absolute()
    try:
        from lmpool.gpu.source import check_context
        from lmpool.gpu.source import prepare as make

        folder = make(order.model, Path(order.cache), progress)
        check_context(folder, order.model_tokens_max)
        return folder
    except ImportError as error:
        raise ReplicaError(f"a library of the model cannot be loaded: {error}", MODEL_HINT) from error


def _pause(cost: Nanos) -> None:
    """On a worker's runner thread: its steps take as long as they say."""
    time.sleep(cost / SECOND)


def _is_integer_model(folder: Path) -> bool:
    try:
        return ARCHITECTURE in json.loads((folder / "config.json").read_bytes()).get("architectures", ())
    except (OSError, ValueError, AttributeError):
        return False  # whoever loads the folder says what is wrong with it


def main() -> None:
    """Of the script `lmpool`."""
    if sys.argv[1:2] == ["child"]:
        sys.exit(run_body(int(sys.argv[3]), Ports(load_replica, prepare)))
    from lmpool import cli

    try:
        code = cli.main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads it has enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = CUT_OFF_CODE
    sys.exit(code)


if __name__ == "__main__":
    main()
