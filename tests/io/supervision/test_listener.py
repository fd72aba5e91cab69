import socket

import pytest

from lmpool.io.supervision.listener import ListenError, listen, url_of


def test_port_zero_takes_a_free_one_and_tells_it() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert url_of("127.0.0.1", listener) == f"http://127.0.0.1:{port}"
        with socket.create_connection(("127.0.0.1", port)):
            pass


def test_a_busy_port_is_told_with_the_flag() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ListenError, match=rf"^port {port} of 127.0.0.1 is in use; choose another with --port"):
            listen("127.0.0.1", port)


def test_foreign_addresses_and_unknown_names_are_told_with_the_flag() -> None:
    with pytest.raises(ListenError, match=r"192.0.2.1 is no address of this machine; give another with --host"):
        listen("192.0.2.1", 0)
    with pytest.raises(ListenError, match="--host"):
        listen("no such host", 0)


def test_addresses_of_version_6_stand_in_brackets() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert url_of("::1", listener).startswith("http://[::1]:")
