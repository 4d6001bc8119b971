"""Commands as the server expects them, and replies read from bytes cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysql.protocol import MysqlPacket, OKPacketWrapper

from foqs.store.packets import MOST_BYTES, BadReply, Err, Ok, Replies, command, query
from tests.store.replies import err, ok, packet, pieces_of, reply

COUNTS = st.one_of(st.integers(0, 300), st.integers(0, 70_000), st.integers(0, 1 << 24), st.integers(0, (1 << 64) - 1))


def test_a_query_is_one_packet() -> None:
    assert query("BEGIN;\u00e9") == b"\x09\0\0\0\x03BEGIN;\xc3\xa9"


def test_a_command_that_does_not_fit_is_refused() -> None:
    assert len(command(3, bytes(MOST_BYTES - 1))) == 4 + MOST_BYTES
    with pytest.raises(ValueError, match="16,777,215 bytes"):
        command(3, bytes(MOST_BYTES))


@given(st.lists(st.lists(COUNTS, min_size=1), min_size=1, max_size=4), st.lists(st.integers(0, 1 << 16)))
def test_replies_are_read_however_they_are_cut(commands: list[list[int]], cuts: list[int]) -> None:
    data = b"".join(reply(*rows) for rows in commands)
    replies = Replies()
    read = [one for piece in pieces_of(data, cuts) for one in replies.feed(piece)]
    assert read == [Ok(one, at + 1 < len(rows)) for rows in commands for at, one in enumerate(rows)]
    assert not replies.partial


def test_every_byte_alone() -> None:
    data = reply(1, 70_000, failed=err(1062, b"Duplicate entry '\xff'")) + reply(3)
    replies = Replies()
    read = [one for at in range(len(data)) for one in replies.feed(data[at : at + 1])]
    assert read == [Ok(1, True), Ok(70_000, True), Err(1062, "HY000", "Duplicate entry '\ufffd'"), Ok(3, False)]


def test_more_replies_than_sequence_ids() -> None:
    replies = Replies()
    assert len(replies.feed(reply(*range(600)))) == 600
    assert replies.feed(reply(5)) == [Ok(5, False)]


@given(COUNTS, COUNTS, st.booleans(), st.binary(max_size=20))
def test_ok_packets_are_read_as_the_driver_reads_them(rows: int, last_id: int, more: bool, info: bytes) -> None:
    body = ok(rows, more=more, last_id=last_id, info=info)
    driver = OKPacketWrapper(MysqlPacket(body, "utf8"))
    assert Replies().feed(packet(1, body)) == [Ok(driver.affected_rows, bool(driver.has_next))] == [Ok(rows, more)]


@pytest.mark.parametrize("before", [b"", packet(1, ok(1, more=True))])
def test_an_error_that_ends_the_connection(before: bytes) -> None:
    """MariaDB counts its packets from 0 when it is shut down, whatever it was doing."""
    read = Replies().feed(before + packet(0, err(1927, b"Connection was killed", b"")))
    assert read[-1] == Err(1927, "", "Connection was killed")


@pytest.mark.parametrize(
    "data",
    [
        packet(0, ok(1)),
        packet(2, ok(1)),
        packet(1, ok(1, more=True)) + packet(1, ok(1)),
        packet(1, b""),
        packet(1, b"\0"),
        packet(1, b"\0\x01\0\x02"),
        packet(1, b"\0\xfc\x01"),
        packet(1, b"\0\xfb\0\0\0\0\0"),
        packet(1, b"\xff\x01"),
        packet(1, b"\x01"),  # the number of columns: rows would follow
        packet(1, b"\xfe\0\0\x02\0"),
        packet(1, b"\xfbfile"),
        b"\xff\xff\xff\x01\0",
    ],
)
def test_anything_else_is_an_error(data: bytes) -> None:
    with pytest.raises(BadReply):
        Replies().feed(data)


@given(st.binary(max_size=64), st.lists(st.integers(0, 64)))
def test_any_bytes_are_read_or_refused(data: bytes, cuts: list[int]) -> None:
    replies = Replies()
    try:
        for piece in pieces_of(data, cuts):
            replies.feed(piece)
    except BadReply:
        return
    assert replies.partial or not data or data[3] <= 1
