"""Records between a sandbox's client and its server: a length, then JSON, over one socket."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

_LENGTH_BYTES = 4


def send(channel: socket.socket, record: dict[str, Any], timeout_s: float | None) -> None:
    """The record is on its way.

    Args:
        channel: a stream socket.
        record: what JSON can hold.
        timeout_s: seconds until giving up; None, on the server's side only, waits for the client.

    Raises:
        TimeoutError: the other side did not take it in time.
    """
    channel.settimeout(timeout_s)
    body = json.dumps(record).encode("ascii")
    channel.sendall(len(body).to_bytes(_LENGTH_BYTES, "big") + body)


def receive(channel: socket.socket, deadline: float | None) -> dict[str, Any]:
    """The next record.

    Args:
        channel: a stream socket.
        deadline: `time.monotonic()` at which waiting ends; None, on the server's side only, waits for the client.

    Raises:
        TimeoutError: the deadline passed.
        EOFError: the other side is gone.
    """
    length = int.from_bytes(_exactly(channel, _LENGTH_BYTES, deadline), "big")
    record: dict[str, Any] = json.loads(_exactly(channel, length, deadline))
    return record


def _exactly(channel: socket.socket, count: int, deadline: float | None) -> bytes:
    received = bytearray()
    while len(received) < count:
        if deadline is not None:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError("the other side does not answer")
            channel.settimeout(remaining_s)
        chunk = channel.recv(count - len(received))
        if not chunk:
            raise EOFError("the other side is gone")
        received += chunk
    return bytes(received)
