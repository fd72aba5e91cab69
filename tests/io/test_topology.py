from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from lmpool.io.topology import (
    Device,
    TopologyError,
    all_pairs,
    cuda_pairs,
    listed_pairs,
    parse_devices,
    parse_matrix,
    run_smi,
    visible_devices,
)

LEGEND = """
Legend:

  X    = Self
  SYS  = PCIe and the interconnect between NUMA nodes
  NODE = PCIe and the interconnect between host bridges of a NUMA node
  PHB  = PCIe and a host bridge
  PXB  = several PCIe bridges
  PIX  = at most one PCIe bridge
  NV#  = a bonded set of # NVLinks
"""


def matrix(*rows: str, nics: int = 0, tail: str = "\t0-31\t0\t\tN/A") -> str:
    """In the form of a driver since 535: tabs, an underlined head, NICs behind the devices."""
    names = [f"GPU{number}" for number in range(len(rows))] + [f"NIC{number}" for number in range(nics)]
    lines = ["\t\x1b[4m" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"]
    for number, row in enumerate(rows):
        lines.append("\t".join([f"GPU{number}", *row.split(), *["PXB"] * nics]) + tail)
    lines += ["\t".join([f"NIC{nic}", *["PXB"] * len(rows), *["X"] * nics]) for nic in range(nics)]
    return "\n".join(lines) + "\n" + LEGEND


def listing(count: int, model: str = "NVIDIA H100 80GB HBM3") -> str:
    return "".join(f"GPU {number}: {model} (UUID: {uuid(number)})\n" for number in range(count))


def uuid(number: int) -> str:
    return f"GPU-{number}a3f5c21-0b6e-4c1d-9a55-{number:012d}"


def full(count: int, word: str) -> list[str]:
    return [" ".join("X" if one == other else word for other in range(count)) for one in range(count)]


DGX_H100 = matrix(*full(8, "NV18"), nics=10)
SWITCHED_16 = matrix(*full(16, "NV6"), tail="\t0-23,48-71")
FOUR_A100 = matrix(*full(4, "NV4"), nics=2)
BRIDGED = matrix("X NV12 SYS SYS", "NV12 X SYS SYS", "SYS SYS X NV12", "SYS SYS NV12 X")
"""Two pairs of cards, each with its bridges."""
HYBRID_MESH = matrix(
    "X NV1 NV1 NV2 NV2 SYS SYS SYS",
    "NV1 X NV2 NV1 SYS NV2 SYS SYS",
    "NV1 NV2 X NV2 SYS SYS NV1 SYS",
    "NV2 NV1 NV2 X SYS SYS SYS NV1",
    "NV2 SYS SYS SYS X NV1 NV1 NV2",
    "SYS NV2 SYS SYS NV1 X NV2 NV1",
    "SYS SYS NV1 SYS NV1 NV2 X NV2",
    "SYS SYS SYS NV1 NV2 NV1 NV2 X",
)
"""Eight V100 without switches: each has links to four of the seven others."""
PCIE = matrix("X PIX PHB SYS", "PIX X PXB SYS", "PHB PXB X NODE", "SYS SYS NODE X")
ONE = matrix("X")
OLD = "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\nGPU0\t X \tNV2\tPIX\t0-19\nGPU1\tNV2\t X \tPIX\t0-19\nmlx5_0\tPIX\tPIX\t X\n"
SPACES = "        GPU0    GPU1    CPU Affinity\nGPU0     X      SOC     0-9\nGPU1    SOC      X      10-19\n"


def pairs(
    ranks: int, topo: str, environment: Mapping[str, str] | None = None, devices: str = ""
) -> list[tuple[int, int]]:
    count = len(parse_matrix(topo).rows)

    def smi(arguments: Sequence[str]) -> str:
        return (devices or listing(count)) if list(arguments) == ["-L"] else topo

    return list(cuda_pairs(ranks, environment or {}, smi))


def both_ways(*found: tuple[int, int]) -> list[tuple[int, int]]:
    return sorted([*found, *((right, left) for left, right in found)])


def test_on_the_cpu_all_pairs_are_there() -> None:
    assert all_pairs(3) == ((0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1))
    assert all_pairs(1) == ()


@pytest.mark.parametrize(("topo", "count"), [(DGX_H100, 8), (SWITCHED_16, 16), (FOUR_A100, 4), (OLD, 2)])
def test_switches_and_full_meshes_give_all_pairs(topo: str, count: int) -> None:
    assert pairs(count, topo) == list(all_pairs(count))


def test_bridges_give_the_bridged_pairs() -> None:
    assert pairs(4, BRIDGED) == both_ways((0, 1), (2, 3))


def test_a_mesh_without_switches_gives_its_links() -> None:
    found = pairs(8, HYBRID_MESH)
    assert len(found) == 8 * 4
    assert [target for source, target in found if source == 0] == [1, 2, 3, 4]


@pytest.mark.parametrize("topo", [PCIE, ONE, SPACES])
def test_pcie_alone_gives_no_pairs(topo: str) -> None:
    assert pairs(len(parse_matrix(topo).rows), topo) == []


def test_replicas_on_one_device_need_no_link() -> None:
    assert pairs(2, ONE) == both_ways((0, 1))
    assert pairs(6, PCIE) == both_ways((0, 4), (1, 5))
    assert pairs(5, BRIDGED) == both_ways((0, 1), (2, 3), (0, 4), (1, 4))


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0,1", both_ways((0, 1))),
        ("0,2", []),
        ("3,2,1,0", both_ways((0, 1), (2, 3))),
        ("0,2,1,3", both_ways((0, 2), (1, 3))),
        (" 2 , 3 ", both_ways((0, 1))),
        (f"{uuid(3)},{uuid(2)}", both_ways((0, 1))),
        ("GPU-1a3,GPU-0", both_ways((0, 1))),
        ("0,1,9,2,3", both_ways((0, 1))),
        ("0,1,-1,2", both_ways((0, 1))),
        ("0,1,GPU-,2", both_ways((0, 1))),
        ("0,1,GPU-77,2", both_ways((0, 1))),
    ],
)
def test_pairs_are_numbered_as_cuda_does_in_the_process(visible: str, expected: list[tuple[int, int]]) -> None:
    count = len(visible_devices(visible, parse_devices(listing(4))))
    assert pairs(count, BRIDGED, {"CUDA_VISIBLE_DEVICES": visible}) == expected


@pytest.mark.parametrize(
    ("visible", "words"),
    [
        ("", "leaves no device"),
        ("-1", "leaves no device"),
        ("0,1,0", "twice"),
        ("MIG-8a3f5c21-0b6e", "MIG"),
    ],
)
def test_a_choice_of_devices_that_cannot_be_is_told(visible: str, words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        pairs(2, BRIDGED, {"CUDA_VISIBLE_DEVICES": visible})


def test_mixed_models_need_one_order_for_both() -> None:
    mixed = listing(3) + f"GPU 3: NVIDIA L4 (UUID: {uuid(3)})\n"
    with pytest.raises(TopologyError, match="PCI_BUS_ID"):
        pairs(4, BRIDGED, devices=mixed)
    assert pairs(4, BRIDGED, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, mixed) == both_ways((0, 1), (2, 3))
    assert pairs(2, BRIDGED, {"CUDA_VISIBLE_DEVICES": "0,1"}, mixed) == both_ways((0, 1))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no matrix"),
        ("Failed to initialize NVML: Driver/library version mismatch\n", "no matrix"),
        (BRIDGED.replace("NV12", "NV??"), r"'NV\?\?' between devices 0 and 1"),
        (BRIDGED.replace("NV12", "NV0"), "unknown word"),
        (BRIDGED.replace("GPU3\tSYS\tSYS\tNV12\tX", "GPU3\tSYS\tNV12\tNV12\tX"), "two words between devices 1 and 3"),
        (BRIDGED.replace("GPU2\tSYS\tSYS\tX", "GPU2\tSYS\tSYS\tNV1"), "'NV1' between devices 2 and 2"),
        (BRIDGED.replace("GPU3\tSYS\tSYS\tNV12\tX\t0-31\t0\t\tN/A", ""), "0 of 4 columns for device 3"),
        (BRIDGED.replace("GPU0\tGPU1\tGPU2\tGPU3", "GPU0\tGPU1\tGPU3\tGPU2"), "heads its columns"),
    ],
)
def test_a_matrix_that_makes_no_sense_is_told(text: str, words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        parse_matrix(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no device"),
        ("No devices found.\n", "no device"),
        (listing(1) + "  MIG 3g.40gb     Device  0: (UUID: MIG-7d1c-11)\n", "MIG"),
        (listing(3).replace("GPU 1", "GPU 5"), "device 5 in place 1"),
    ],
)
def test_a_list_of_devices_that_makes_no_sense_is_told(text: str, words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        parse_devices(text)


def test_list_and_matrix_must_agree() -> None:
    with pytest.raises(TopologyError, match="lists 3 devices and shows links of 4"):
        pairs(2, BRIDGED, devices=listing(3))


def test_devices_are_read_with_model_and_uuid() -> None:
    assert parse_devices(listing(1)) == (Device("NVIDIA H100 80GB HBM3", uuid(0)),)


def test_an_operator_lists_pairs() -> None:
    assert listed_pairs("0-1, 2>3", 4) == ((0, 1), (1, 0), (2, 3))
    assert listed_pairs("0>1,1>0,0-1", 2) == ((0, 1), (1, 0))


@pytest.mark.parametrize("text", ["", "0", "0-", "0-1;2-3", "1-1", "0-4", "a-b", "0--1", "0-1,"])
def test_a_list_that_makes_no_sense_is_told(text: str) -> None:
    with pytest.raises(TopologyError):
        listed_pairs(text, 4)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (None, "not installed"),
        ("#!/bin/sh\necho broken >&2\nexit 9\n", "code 9 and said: broken"),
        ("#!/bin/sh\nexit 9\n", "code 9 and said: nothing"),
    ],
)
def test_nvidia_smi_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, words: str
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}")
    if program is not None:
        (tmp_path / "nvidia-smi").write_text(program)
        (tmp_path / "nvidia-smi").chmod(0o755)
    with pytest.raises(TopologyError, match=words):
        run_smi(["-L"])


def test_nvidia_smi_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}")
    (tmp_path / "nvidia-smi").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert run_smi(["topo", "-m"]) == "topo -m\n"
