"""The public port: taken before anything else, so that a busy one is told before a model is loaded."""

import errno
import socket

BACKLOG = 2048
"""Connections that wait while the ingress is started again; the kernel's own bound is commonly 4096."""


class ListenError(Exception):
    """One line for the operator."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises ListenError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ListenError(
            f"{host!r} is no address or name of this machine: {error}; give another with --host"
        ) from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(_told(host, port, error)) from error
    return listener


def _told(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} of {host} is in use; choose another with --port (--port 0 takes a free one)"
        case errno.EACCES:
            return f"port {port} needs rights that this user lacks; choose one from 1024 on with --port"
        case errno.EADDRNOTAVAIL:
            return f"{host} is no address of this machine; give another with --host"
        case _:
            return f"cannot listen at {host}, port {port}: {error.strerror}"


def url_of(host: str, listener: socket.socket) -> str:
    """As clients on this machine would write it."""
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
