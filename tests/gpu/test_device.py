import pytest
import torch

from lmpool.core.plan import ReplicaError
from lmpool.gpu.device import choose_device, choose_dtype, cpu_flags

pytestmark = pytest.mark.model

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


@without_cuda
def test_b78_auto_takes_the_cpu_and_says_why() -> None:
    choice = choose_device("auto", 3)
    assert choice.device == torch.device("cpu")
    assert "CUDA" in choice.reason


@without_cuda
@pytest.mark.parametrize("wanted", ["cuda", "cuda:1"])
def test_b78_a_forced_device_that_is_missing_is_one_line_with_a_remedy(wanted: str) -> None:
    with pytest.raises(ReplicaError) as raised:
        choose_device(wanted, 0)
    assert wanted in raised.value.what
    assert "looked for" in raised.value.what
    assert "--device cpu" in raised.value.hint
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("wanted", ["gpu", "cuda:x", "cuda:-1", "", "cpu:0"])
def test_unknown_devices_are_refused(wanted: str) -> None:
    with pytest.raises(ReplicaError, match="unknown device"):
        choose_device(wanted, 0)


def test_dtype_as_ordered_and_unknown() -> None:
    assert choose_dtype("float16", torch.device("cpu")).dtype == torch.float16
    with pytest.raises(ReplicaError, match="float64"):
        choose_dtype("float64", torch.device("cpu"))


def test_auto_dtype_on_the_cpu_gives_its_reason() -> None:
    choice = choose_dtype("auto", torch.device("cpu"))
    assert choice.dtype in (torch.bfloat16, torch.float32)
    assert "bf16" in choice.reason


def test_flags_are_read_from_cpuinfo() -> None:
    text = "processor\t: 0\nflags\t\t: fpu amx_bf16 avx512f\n\nprocessor\t: 1\nflags\t\t: other\n"
    assert cpu_flags(text) == {"fpu", "amx_bf16", "avx512f"}
    assert cpu_flags("Features\t: fp asimd bf16\n") == {"fp", "asimd", "bf16"}
    assert cpu_flags("nothing\n") == frozenset()
