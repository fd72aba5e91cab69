"""Which replicas may copy blocks to which: directed pairs of ranks.

On the CPU all pairs share memory. On CUDA a pair needs NVLinks (through NVSwitches every pair has them), by what
`nvidia-smi topo -m` says; or the operator lists the pairs. Devices are numbered as CUDA numbers them in a process:
after CUDA_VISIBLE_DEVICES, rank r on device r modulo their count. nvidia-smi numbers them by PCI bus.
"""

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import TypeAlias

import attrs

RankPair: TypeAlias = tuple[int, int]
"""Source and target."""

SMI_S = 30.0
VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"

SELF = "X"
SLOWER = ("PIX", "PXB", "PHB", "NODE", "SYS", "SOC")
"""Through PCIe: never used unless the operator lists the pair."""

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LINKS = re.compile(r"NV[1-9]\d*")
_DEVICE = re.compile(r"GPU (\d+): (.*) \(UUID: (GPU-[0-9A-Za-z-]+)\)")
_MIG_DEVICE = re.compile(r"\s+MIG ")
_LISTED = re.compile(r"(\d+)([->])(\d+)")


@attrs.frozen
class Reading:
    """How replicas read each other's blocks, and which may."""

    path: str | None
    """As calibration files call it; None: not at all."""
    pairs: tuple[RankPair, ...]


class TopologyError(Exception):
    """One line: why the pairs are not known, and what helps."""


@attrs.frozen
class Device:
    """As `nvidia-smi -L` lists it."""

    model: str
    uuid: str


@attrs.frozen
class LinkMatrix:
    """What is between two devices, in nvidia-smi's words and numbers."""

    rows: tuple[tuple[str, ...], ...]

    def is_linked(self, one: int, other: int) -> bool:
        """By NVLinks, or by being one device."""
        return one == other or _LINKS.fullmatch(self.rows[one][other]) is not None


def all_pairs(ranks: int) -> tuple[RankPair, ...]:
    return tuple(permutations(range(ranks), 2))


def listed_pairs(text: str, ranks: int) -> tuple[RankPair, ...]:
    """`0-1,2>3`: both ways between 0 and 1, and from 2 to 3. Raises TopologyError."""
    pairs: dict[RankPair, None] = {}
    for item in text.split(","):
        found = _LISTED.fullmatch(item.strip())
        if found is None:
            raise TopologyError(
                f"{item.strip()!r} is no pair of ranks: write 0-1 (both ways) or 0>1, with commas between"
            )
        source, target = int(found[1]), int(found[3])
        if source == target or max(source, target) >= ranks:
            raise TopologyError(f"{item.strip()!r} is no pair of two of the ranks 0 to {ranks - 1}")
        pairs[source, target] = None
        if found[2] == "-":
            pairs[target, source] = None
    return tuple(pairs)


def cuda_pairs(ranks: int, environment: Mapping[str, str], smi: Callable[[Sequence[str]], str]) -> tuple[RankPair, ...]:
    """Pairs whose devices are linked. `smi` runs nvidia-smi with arguments. Raises TopologyError."""
    devices = parse_devices(smi(["-L"]))
    matrix = parse_matrix(smi(["topo", "-m"]))
    if len(matrix.rows) != len(devices):
        raise TopologyError(f"nvidia-smi lists {len(devices)} devices and shows links of {len(matrix.rows)}")
    visible = visible_devices(environment.get(VISIBLE), devices)
    if not visible:
        raise TopologyError(f"{VISIBLE}={environment.get(VISIBLE, '')} leaves no device")
    if len({devices[number].model for number in visible}) > 1 and environment.get(ORDER) != "PCI_BUS_ID":
        raise TopologyError(f"devices of several models: set {ORDER}=PCI_BUS_ID, or CUDA numbers them in its own way")
    homes = [visible[rank % len(visible)] for rank in range(ranks)]
    return tuple(pair for pair in all_pairs(ranks) if matrix.is_linked(homes[pair[0]], homes[pair[1]]))


def parse_devices(text: str) -> tuple[Device, ...]:
    """The output of `nvidia-smi -L`. Raises TopologyError."""
    devices: list[Device] = []
    for line in text.splitlines():
        if _MIG_DEVICE.match(line):
            raise TopologyError("a device is cut into MIG instances, which have no links to each other: list the pairs")
        found = _DEVICE.match(line)
        if found is None and line.strip():
            raise TopologyError(f"nvidia-smi -L says {line.strip()!r}, which is no device")
        if found is not None:
            if int(found[1]) != len(devices):
                raise TopologyError(f"nvidia-smi -L lists device {found[1]} in place {len(devices)}")
            devices.append(Device(found[2], found[3]))
    if not devices:
        raise TopologyError("nvidia-smi -L lists no device")
    return tuple(devices)


def parse_matrix(text: str) -> LinkMatrix:
    """The output of `nvidia-smi topo -m`: a head, a row a device, then NICs and a legend. Raises TopologyError."""
    lines = [_ESCAPES.sub("", line).split() for line in text.splitlines()]
    heads = [words for words in lines if words[:1] == ["GPU0"] and SELF not in words]
    if not heads:
        raise TopologyError("nvidia-smi topo -m shows no matrix of devices")
    count = sum(1 for word in heads[0] if re.fullmatch(r"GPU\d+", word))
    if heads[0][:count] != [f"GPU{number}" for number in range(count)]:
        raise TopologyError(f"nvidia-smi topo -m heads its columns {' '.join(heads[0])}")
    named = {words[0]: tuple(words[1 : count + 1]) for words in lines if words and words is not heads[0]}
    rows = tuple(named.get(f"GPU{number}", ()) for number in range(count))
    for number, row in enumerate(rows):
        _check_row(rows, number, row)
    return LinkMatrix(rows)


def _check_row(rows: tuple[tuple[str, ...], ...], number: int, row: tuple[str, ...]) -> None:
    if len(row) != len(rows):
        raise TopologyError(f"nvidia-smi topo -m has {len(row)} of {len(rows)} columns for device {number}")
    for other, word in enumerate(row):
        if (word == SELF) != (other == number):
            raise TopologyError(f"nvidia-smi topo -m has {word!r} between devices {number} and {other}")
        if word != SELF and word not in SLOWER and _LINKS.fullmatch(word) is None:
            raise TopologyError(
                f"nvidia-smi topo -m has {word!r} between devices {number} and {other}, an unknown word"
            )
        if other < number and rows[other][number] != word:
            raise TopologyError(f"nvidia-smi topo -m has two words between devices {other} and {number}")


def visible_devices(value: str | None, devices: Sequence[Device]) -> tuple[int, ...]:
    """Numbers by nvidia-smi, in CUDA's order in a process with this CUDA_VISIBLE_DEVICES (None: unset).

    As CUDA has it: the first entry that names no device hides itself and all behind it. Raises TopologyError.
    """
    if value is None:
        return tuple(range(len(devices)))
    visible: list[int] = []
    for entry in (part.strip() for part in value.split(",")):
        if entry.startswith("MIG-"):
            raise TopologyError(f"{VISIBLE} names MIG instance {entry}, which has no links: list the pairs")
        named = _named(entry, devices)
        if len(named) != 1:
            break
        if named[0] in visible:
            raise TopologyError(f"{VISIBLE}={value} names device {named[0]} twice")
        visible += named
    return tuple(visible)


def _named(entry: str, devices: Sequence[Device]) -> list[int]:
    """By number, or by as much of the UUID as tells it from others."""
    if entry.isdecimal():
        return [int(entry)] if int(entry) < len(devices) else []
    if not entry.startswith("GPU-"):
        return []
    return [number for number, device in enumerate(devices) if device.uuid.startswith(entry)]


def run_smi(arguments: Sequence[str]) -> str:
    """What nvidia-smi writes. Raises TopologyError."""
    command = " ".join(["nvidia-smi", *arguments])
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],  # noqa: S607 (wherever the driver has put it)
            capture_output=True,
            text=True,
            timeout=SMI_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise TopologyError("nvidia-smi is not installed: list the pairs") from error
    except subprocess.TimeoutExpired as error:
        raise TopologyError(f"{command} took longer than {SMI_S:g} s") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        raise TopologyError(f"{command} ended with code {done.returncode} and said: {said[-1]}")
    return done.stdout
