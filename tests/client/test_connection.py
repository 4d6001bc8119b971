"""One socket: a reply received in time is read also by a late reader."""

import socket
import threading
from collections.abc import Iterator
from time import monotonic

import pytest

from foqs.client.connection import Address, Connection
from foqs.errors import LostReply
from tests.client.peer import LATER, eventually


@pytest.fixture
def ends() -> Iterator[tuple[Connection, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = Connection(Address("127.0.0.1", listener.getsockname()[1]), LATER)
        other, _ = listener.accept()
        with other:
            yield connection, other
        connection.close()


def test_a_reply_received_in_time_is_read_late(ends):
    """It was stopped in between, or had to connect to a silent host for another part of its call."""
    connection, other = ends
    connection.send(b"hello", monotonic() + LATER)
    other.sendall(b"\0\0\0\2ok")
    eventually(lambda: not connection.usable())
    assert connection.receive(monotonic() - 1) == b"ok"


def test_late_and_nothing_there_is_a_lost_reply(ends):
    connection, _ = ends
    with pytest.raises(LostReply, match="timed out"):
        connection.receive(monotonic() - 1)


def test_a_reply_that_comes_byte_by_byte_gets_no_more_time(ends):
    connection, other = ends
    ended = threading.Event()

    def dribble() -> None:
        while not ended.wait(0.6):
            other.sendall(b"\0")

    thread = threading.Thread(target=dribble)
    thread.start()
    try:
        with pytest.raises(LostReply, match="timed out"):
            connection.receive(monotonic() + 1)
    finally:
        ended.set()
        thread.join(LATER)
