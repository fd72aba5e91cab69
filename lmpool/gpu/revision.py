"""The content digest of a model folder's weights: what a display name cannot promise.

Hashed are, for each safetensors file in order of name: its size, its whole header (names, shapes, dtypes, offsets)
and of every tensor the first, middle and last `SAMPLE_BYTES`; and the configuration. Two sets of weights that
differ only between the samples of every tensor have the same digest; training changes all of a tensor. Reading
everything would take a minute for large models.
"""

import json
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

SAMPLE_BYTES = 4096
HEADER_LENGTH_BYTES = 8


def weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _sample(stream: BinaryIO, begin: int, end: int) -> bytes:
    """The first, middle and last bytes of a range; all of it where it is short."""
    last = max(begin, end - SAMPLE_BYTES)
    parts: list[bytes] = []
    for start in sorted({begin, (begin + last) // 2, last}):
        stream.seek(start)
        parts.append(stream.read(min(SAMPLE_BYTES, end - start)))
    return b"".join(parts)


def weights_revision(folder: Path) -> str:
    """32 hexadecimal digits."""
    digest = blake2b(digest_size=16, person=b"lmpool-weights-1")
    digest.update((folder / "config.json").read_bytes())
    for file in weight_files(folder):
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(HEADER_LENGTH_BYTES), "little")
            header = stream.read(length)
            digest.update(file.stat().st_size.to_bytes(8, "little"))
            digest.update(header)
            data = HEADER_LENGTH_BYTES + length
            for name, entry in sorted(json.loads(header).items()):
                if name != "__metadata__":
                    begin, end = entry["data_offsets"]
                    digest.update(_sample(stream, data + begin, data + end))
    return digest.hexdigest()
