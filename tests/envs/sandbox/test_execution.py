import socket
import time

import pytest

from arl_lightning.envs.sandbox import landlock, messages
from arl_lightning.envs.sandbox.execution import ErrorTail, Execution, OutputHead


def test_an_execution_is_ok_when_it_has_no_error() -> None:
    assert Execution("1", "").ok
    assert not Execution("1", "ValueError").ok


def test_output_up_to_the_limit_is_kept_whole() -> None:
    head = OutputHead(64)
    head.feed(b"x" * 64, final=True)
    assert head.text() == "x" * 64


def test_a_cut_output_has_exactly_the_limit_and_the_true_count() -> None:
    for count in (65, 99, 163, 10**6):
        head = OutputHead(64)
        head.feed(b"x" * count, final=True)
        kept, _, marker = head.text().partition("\n")
        assert len(head.text()) <= 64
        assert marker == f"... [{count - len(kept)} more characters]"
        assert len(kept) >= 32  # the marker of a seven-digit count has 31 characters


def test_characters_are_counted_over_broken_chunks() -> None:
    head = OutputHead(64)
    for byte in "é√".encode() + b"\xff":
        head.feed(bytes([byte]))
    head.feed(b"", final=True)
    assert head.text() == "é√\ufffd"
    assert head.total_bytes == 6  # 2 + 3 + 1


def test_the_tail_keeps_the_last_line_that_is_not_blank() -> None:
    tail = ErrorTail()
    tail.feed(b"x" * 10**6 + b"\nlast line \n")
    tail.feed(b"\n \n")
    assert tail.last_line() == "last line"
    assert tail.total_bytes == 10**6 + 15
    assert ErrorTail().last_line() == ""


def test_records_survive_the_socket_whatever_they_hold() -> None:
    ours, theirs = socket.socketpair()
    record = {"code": "\ud800\0é" * 10_000}
    messages.send(ours, record, 5.0)
    assert messages.receive(theirs, time.monotonic() + 5) == record
    ours.close()
    with pytest.raises(EOFError):
        messages.receive(theirs, time.monotonic() + 5)
    theirs.close()


def test_waiting_for_a_record_ends_at_the_deadline() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(b"\0\0\0\5ab")  # two of five bytes
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        messages.receive(theirs, start + 0.2)
    assert 0.2 <= time.monotonic() - start < 2
    ours.close()
    theirs.close()


def test_a_ruleset_handles_what_its_version_knows() -> None:
    def words(version: int) -> list[int]:
        found = landlock.ruleset_bytes(version)
        return [int.from_bytes(found[at : at + 8], "little") for at in range(0, len(found), 8)]

    assert words(1) == [0x1FFF]  # 13 rights over files
    assert words(2) == [0x3FFF]  # and refer
    assert words(3) == [0x7FFF]  # and truncate
    assert words(4) == [0x7FFF, 3]  # bind and connect
    assert words(5) == [0xFFFF, 3]  # and devices' ioctl
    assert words(6) == [0xFFFF, 3, 3]  # abstract sockets and signals
    assert words(9) == [0xFFFF, 3, 3]
