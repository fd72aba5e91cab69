import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.gpu.paths.deadline import Deadline
from lmpool.gpu.paths.frames import FRAME_BYTES, Frame, FrameKind, FrameSocket, decode_frame, encode_frame
from lmpool.gpu.paths.port import PathError
from tests.gpu.paths.pools import order, watch

pytestmark = pytest.mark.model

numbers = st.integers(0, (1 << 32) - 1)
frames = st.builds(Frame, st.sampled_from(FrameKind), st.tuples(numbers, numbers), numbers, numbers, numbers)
ORDER = order([0], [0], timeout_s=5)


@given(frames)
def test_frames_come_back(frame: Frame) -> None:
    assert decode_frame(encode_frame(frame)) == frame


@given(st.binary(min_size=FRAME_BYTES, max_size=FRAME_BYTES))
def test_what_is_no_frame_is_an_error_of_the_path(data: bytes) -> None:
    with pytest.raises(PathError):
        decode_frame(data)


def test_a_frame_arrives_in_parts_and_others_transfers_are_skipped() -> None:
    left, right = socket.socketpair()
    wanted = Frame(FrameKind.ASK, ORDER.transfer, 3, 4, 5)
    sent = encode_frame(Frame(FrameKind.ASK, (7, 99), 0, 0, 0)) + encode_frame(wanted)
    with left:
        frame_socket = FrameSocket(right)
        left.sendall(sent[:-7])
        with pytest.raises(PathError, match="longer"):
            frame_socket.receive(ORDER.transfer, Deadline(order([0], [0], timeout_s=0.1)), watch())
        left.sendall(sent[-7:])
        assert frame_socket.receive(ORDER.transfer, Deadline(ORDER), watch()) == wanted
    with pytest.raises(PathError, match="gone"):
        frame_socket.receive(ORDER.transfer, Deadline(ORDER), watch())
    frame_socket.close()
