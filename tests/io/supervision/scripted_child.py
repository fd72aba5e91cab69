"""A child that does what a script says, which the supervisor runs in place of `lmpool child`.

The script is the JSON file that SCRIPT names: for a process's name a list of lives, of which the last is lived again
and again. A life is a list of acts, after which the child waits for a drain. Each life adds a line to `lived`, a file
beside it.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from lmpool.io.child import ChildEnd, open_channel
from lmpool.io.orders import Beat, Failed, Prepared, PrepareOrder, Progress, Ready

USUAL = {"prepare": [["prepared"]]}
SERVING = [["ready"]]


def main() -> None:
    name, channel = sys.argv[1], open_channel(int(sys.argv[2]))
    order = channel.order()
    script = Path(os.environ["SCRIPT"])
    lives = {**USUAL, **json.loads(script.read_text())}.get(name, SERVING)
    life = remember(script, name, "" if isinstance(order, PrepareOrder) else str(order.epoch))
    for act in lives[min(life, len(lives)) - 1]:
        perform(channel, name, act)
    if isinstance(order, PrepareOrder):
        return
    drained = threading.Event()
    channel.on_drain(lambda drain: drained.set())
    drained.wait()
    remember(script, f"{name} drained", "")


def remember(script: Path, name: str, epoch: str) -> int:
    """How often it is now on record."""
    record = script.with_name("lived")
    with record.open("a") as stream:
        stream.write(f"{name}:{os.getpid()}:{epoch}\n")
    return sum(line.startswith(f"{name}:") for line in record.read_text().splitlines())


def perform(channel: ChildEnd, name: str, act: str) -> None:
    word, _, rest = act.partition(":")
    match word:
        case "ready":
            channel.note(Ready((f"fact of {name}",)))
        case "prepared":
            channel.note(Prepared("/model"))
        case "fail":
            channel.note(Failed(rest, "mend it"))
            sys.exit(1)
        case "write":
            os.write(2, rest.encode())
        case "progress":
            channel.note(Progress(rest))
        case "beat":
            channel.note(Beat(working=False, steps=int(rest)))
        case "exit":
            os._exit(int(rest))
        case "kill":
            os.kill(os.getpid(), int(rest))
        case "deaf":
            threading.Event().wait()
        case "spawn":
            sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            remember(Path(os.environ["SCRIPT"]), f"spawned by {name} {sleeper.pid}", "")
        case _:
            raise AssertionError(act)


if __name__ == "__main__":
    main()
