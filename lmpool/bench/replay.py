"""`tools/sim --replay FILE`: what a recording of control comes to, again or under the eyes of another policy."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lmpool.core.route import POLICIES
from lmpool.io.recording import RecordingError
from lmpool.io.replay import Replay, replay

CANNOT_TELL = (
    "Each choice was compared in the world that the recorded policy had made. What the other would have changed by\n"
    "its own choices (caches, queues, and so waits, reuse and later choices) is not in a recording; lmpool simulate\n"
    "runs a workload under each policy."
)


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 if the replay differs from the recording, 2 for a file or policy that cannot be used."""
    parser = argparse.ArgumentParser("tools/sim", description=__doc__, allow_abbrev=False)
    parser.add_argument("--replay", type=Path, required=True, metavar="FILE", help="of lmpool serve --record-control")
    parser.add_argument("--policy", choices=tuple(POLICIES), help="that looks on, and says what it would do otherwise")
    given = parser.parse_args(arguments)
    began = time.perf_counter()
    try:
        result = replay(given.replay, given.policy)
    except RecordingError as error:
        print(f"tools/sim: {error}", file=sys.stderr)
        return 2
    print(*replay_lines(result, given.policy, time.perf_counter() - began), sep="\n")
    return 1 if result.divergences else 0


def replay_lines(result: Replay, other: str | None, seconds: float) -> list[str]:
    speed = f"{result.events / seconds:,.0f} events/s" if seconds > 0 else "at once"
    lines = [
        f"policy {result.policy}: {result.events} events, {result.decisions} decisions, {speed}",
        f"{result.digests} digests compared, {len(result.divergences)} divergences",
        *(f"  {line}" for line in result.divergences),
    ]
    if result.is_full:
        lines.append("the recording ends at its size bound; control went on")
    elif not result.is_whole:
        lines.append("the recording has no end: control was killed, and its last events may be lost")
    if other is not None:
        lines += [f"{other} would have chosen otherwise in {result.differing} of {result.choices} choices", CANNOT_TELL]
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
