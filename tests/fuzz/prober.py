"""Asks for /livez over and over, in a process of its own, so that nobody's event loop delays it but the server's.

`python -m tests.fuzz.prober HOST PORT`: until standard input ends; then the delays in seconds, as JSON.
"""

import http.client
import json
import select
import sys
import time

PAUSE_S = 0.02


def main(host: str, port: int) -> None:
    delays: list[float] = []
    connection = http.client.HTTPConnection(host, port, timeout=120)
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        began = time.monotonic()
        connection.request("GET", "/livez")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
        delays.append(time.monotonic() - began)
    json.dump(delays, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
