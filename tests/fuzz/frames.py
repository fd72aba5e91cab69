"""Hostile bytes for a link, drawn from a seed: garbage, torn frames, and frames whose fields are almost right."""

import json
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from random import Random
from typing import Any

from lmpool.core.limits import FRAME_BYTES_MAX
from lmpool.io.wire import PREFIX, Framed, WireError, decode, encode

INTEGERS = (-1, 0, 1, 2, 3, 7, 64, 255, 256, 1 << 16, (1 << 31) - 1, 1 << 32, (1 << 62) + 1, -(1 << 62))
"""Edges of what fields hold."""
OTHERS: Sequence[Any] = (None, True, False, "", "x" * 300, "nan", "inf", 1.5, -0.25, 1e300, [], {}, [[]], "\u0000")


class FrameSource:
    """Frames on the model of good examples."""

    def __init__(self, random: Random, examples: Sequence[Framed]) -> None:
        self._random = random
        self._examples = examples
        self._is_polite = random.random() < 0.7
        self._said: list[bytes] = []
        """What was said before, to be said again."""

    def next(self) -> bytes:
        """One input: bytes of whatever kind."""
        return self._readable() if self._is_polite else self._any()

    def _readable(self) -> bytes:
        """A frame that keeps the form, so that it reaches a machine, whatever it says."""
        while True:
            frame = self._random.choice(self._said) if self._said and self._random.random() < 0.1 else self._similar()
            with suppress(WireError):
                decode(frame)
                return frame

    def _similar(self) -> bytes:
        good = encode(self._random.choice(self._examples))
        frame = good if self._random.random() < 0.2 else self.almost(good)
        self._remember(frame)
        return frame

    def _any(self) -> bytes:
        random = self._random
        good = encode(random.choice(self._examples))
        match random.randrange(10):
            case 0:
                return random.randbytes(random.randrange(1, 400))
            case 1:
                return good[: random.randrange(1, len(good))]
            case 2:
                return self._with_wrong_prefix(good)
            case 3:
                return self._with_wrong_bytes(good)
            case 4 if self._said:
                return random.choice(self._said)
            case _:
                return self._similar()

    def almost(self, good: bytes) -> bytes:
        """One to three values of a frame are others."""
        _, text_length = PREFIX.unpack_from(good)
        fields = json.loads(good[PREFIX.size : PREFIX.size + text_length])
        binary = good[PREFIX.size + text_length :]
        for _ in range(self._random.choice((1, 1, 1, 2, 3))):
            self._change(fields)
        text = json.dumps(fields).encode()
        return PREFIX.pack(len(text) + len(binary), len(text)) + text + binary

    def _change(self, place: Any) -> None:
        """Some value in it, at any depth."""
        random = self._random
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = random.choice(keys)
        value = place[key]
        if isinstance(value, dict | list) and value and random.random() < 0.7:
            self._change(value)
        elif isinstance(value, list) and value and random.random() < 0.7:
            place[key] = deepcopy(value * random.randrange(4))
        elif type(value) in (int, float) and random.random() < 0.8:
            place[key] = value + random.choice((-1, 1)) if random.random() < 0.4 else random.choice(INTEGERS)
        elif isinstance(place, dict) and random.random() < 0.1:
            del place[key]
        else:
            place[key] = deepcopy(random.choice(OTHERS))

    def _with_wrong_prefix(self, good: bytes) -> bytes:
        lengths = (0, 1, 7, 4096, 4097, FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, (1 << 32) - 1, len(good))
        return PREFIX.pack(self._random.choice(lengths), self._random.choice(lengths)) + good[PREFIX.size :]

    def _with_wrong_bytes(self, good: bytes) -> bytes:
        data = bytearray(good)
        for _ in range(self._random.randrange(1, 6)):
            data[self._random.randrange(PREFIX.size, len(data))] = self._random.randrange(256)
        return bytes(data)

    def _remember(self, frame: bytes) -> None:
        self._said = [*self._said[-31:], frame]
