"""Transfers that are struck at random points: `python -m tests.e2e.transfer_chaos --points 200 [--seed N]`.

At each point a transfer between two real workers is under way, requests run beside it, and source, target or control is
killed (and replaced) or stopped for a while. Afterwards nothing may be pinned, reserved or mapped that should not be,
and the same prompts must give the right tokens at both ranks. Prints a table; the first fault ends it with a trace.
"""

import argparse
import asyncio
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import attrs
import uvloop

from lmpool.core.messages.transfer import TransferMode
from tests.e2e.transfer_rig import TransferRig, transfer_rig

BLOCKS_MAX = 40
"""A pool of 200 may have 50 pinned for copies."""
COPY_BLOCK_S = 0.01
STOP_S_MAX = 2.5
"""Control waits a second for an answer; the sides live 4 s longer than the copy may take."""
COPY_S = 1.5


@attrs.frozen
class Strike:
    victim: str
    """source, target or control."""
    stops_s: float | None
    """None: it is killed."""
    after_s: float | None
    """From the order of the transfer. None: it is stopped before that."""
    also: str | None
    """Killed while the first is stopped."""
    source: int
    blocks: int
    mode: TransferMode


@attrs.frozen
class Struck:
    strike: Strike
    phase: str
    """When it was struck, or `over`."""
    outcome: str
    """`unknown`: to a control that was killed."""


def draw(chance: random.Random) -> Strike:
    victim, also = chance.sample(("source", "target", "control"), 2)
    stops, blocks = chance.random() < 0.5, chance.randint(1, BLOCKS_MAX)
    is_early = stops and victim != "control" and chance.random() < 0.2
    return Strike(
        victim=victim,
        stops_s=chance.uniform(0.05, STOP_S_MAX) if stops else None,
        after_s=None if is_early else chance.uniform(0, 1.2 * blocks * COPY_BLOCK_S),
        also=also if stops and chance.random() < 0.3 else None,
        source=chance.randrange(2),
        blocks=blocks,
        mode=chance.choice(tuple(TransferMode)),
    )


async def point(rig: TransferRig, number: int, strike: Strike) -> Struck:
    """Raises AssertionError where anything is wrong or left."""
    source, target = strike.source, 1 - strike.source
    names = {"source": f"worker {source}", "target": f"worker {target}", "control": "control"}
    prompt, others = rig.prompt(3 * number, strike.blocks), [rig.prompt(3 * number + 1 + rank, 12) for rank in (0, 1)]
    await rig.run(prompt, source)
    victim, also = names[strike.victim], None if strike.also is None else names[strike.also]
    if strike.after_s is None:
        rig.stop(victim)
    assert (await rig.order(prompt, source, target, strike.mode, COPY_S)).denial is None
    beside = [rig.run(others[rank], rank) for rank in (0, 1) if f"worker {rank}" not in (victim, also)]
    running = asyncio.gather(*beside)
    await asyncio.sleep(strike.after_s or 0)
    under_way = (await rig.state()).transfers.under_way
    phase = under_way[0].phase if under_way else "over"
    if strike.stops_s is None:
        await rig.kill(victim)
        await running
        await rig.start(victim)
    else:
        rig.stop(victim)
        await asyncio.sleep(strike.stops_s / 2)
        if also is not None:
            await rig.kill(also)
        await asyncio.sleep(strike.stops_s / 2)
        rig.go_on(victim)
        await running
        if also is not None:
            await rig.start(also)
    await rig.at_rest()
    over = (await rig.state()).transfers.over
    for rank in (target, source):
        await rig.run(prompt, rank)
        await rig.run(others[rank], rank)
    await rig.at_rest()
    await rig.none_of_the_dead()
    return Struck(strike, phase, over[-1].outcome if over else "unknown")


async def struck(folder: Path, points: int, seed: int, tell: Callable[[str], None]) -> list[Struck]:
    chance = random.Random(seed)
    found: list[Struck] = []
    async with transfer_rig(folder, COPY_BLOCK_S) as rig:
        for number in range(points):
            strike = draw(chance)
            try:
                found.append(await point(rig, number, strike))
            except BaseException as error:
                error.add_note(f"point {number} of seed {seed}: {strike}\n" + "\n".join(rig.lines[-20:]))
                raise
            tell(f"{number + 1}: {found[-1]}")
    return found


def table(found: list[Struck]) -> str:
    """Counts by what was done to whom in which phase, with the outcomes."""
    rows: dict[tuple[str, str, str], Counter[str]] = {}
    for each in found:
        done = "killed" if each.strike.stops_s is None else "stopped"
        whom = each.strike.victim if each.strike.also is None else f"{each.strike.victim}, {each.strike.also} killed"
        rows.setdefault((done, whom, each.phase), Counter())[each.outcome] += 1
    lines = [f"{'done':8} {'to':24} {'in phase':12} {'points':>6}  outcomes"]
    for (done, victim, phase), outcomes in sorted(rows.items()):
        told = ", ".join(f"{outcome} {count}" for outcome, count in sorted(outcomes.items()))
        lines.append(f"{done:8} {victim:24} {phase:12} {outcomes.total():6}  {told}")
    return "\n".join(lines)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(struck(Path(folder), given.points, given.seed, say))
    say(table(found))
    say(f"{len(found)} points, nothing wrong, nothing left")


if __name__ == "__main__":
    main()
