"""Commands as the server expects them, replies read from bytes cut anywhere, and new items as parameters."""

from __future__ import annotations

import io
from collections.abc import Callable
from struct import error as StructError

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysql.protocol import MysqlPacket, OKPacketWrapper

from foqs.rows import NewItem
from foqs.store.packets import (
    COM_STMT_CLOSE,
    MOST_BYTES,
    SIZES,
    BadReply,
    Err,
    Inserts,
    Ok,
    Replies,
    close_command,
    command,
    prepare_commands,
    query,
    read_prepared,
)
from foqs.store.statements import narrow_rows
from tests.store.replies import err, ok, packet, pieces_of, reply
from tests.store.shards import new_item

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


MAX_BYTES = 1 << 20
_HEAD_BYTES = 5


def inserts() -> Inserts:
    return Inserts(range(1, 2 * len(SIZES) + 1))


def reader(data: bytes) -> Callable[[int], bytes]:
    return io.BytesIO(data).read


def prepared(number: int, parameters: int, columns: int = 0) -> bytes:
    """A server's reply to a statement."""
    counts = columns.to_bytes(2, "little") + parameters.to_bytes(2, "little")
    bodies = [b"\0" + number.to_bytes(4, "little") + counts + b"\0\0\0"]
    for count in (parameters, columns):
        bodies += [b"\3def"] * count + ([b"\xfe\0\0\2\0"] if count else [])
    return b"".join(packet(at + 1, body) for at, body in enumerate(bodies))


@pytest.mark.parametrize(("parameters", "columns"), [(0, 0), (5, 0), (704, 0), (3, 2), (0, 2)])
def test_the_reply_to_a_prepared_statement(parameters: int, columns: int) -> None:
    read = reader(prepared(70_000, parameters, columns) + packet(1, err(1461)) + b"rest")
    assert read_prepared(read) == 70_000
    assert read_prepared(read) == Err(1461, "HY000", "no")
    assert read(9) == b"rest"


@pytest.mark.parametrize("body", [b"\1", b"\0\1\0\0\0", b"\xff\1"])
def test_other_replies_are_refused(body: bytes) -> None:
    with pytest.raises(BadReply):
        read_prepared(reader(packet(1, body)))


def test_a_statement_for_each_size_of_each_table() -> None:
    made = prepare_commands()
    assert len(made) == 2 * len(SIZES)
    assert [text.count(b"(?,") for text in made] == [*SIZES, *SIZES]
    assert close_command(258)[_HEAD_BYTES - 1 :] == bytes([COM_STMT_CLOSE]) + b"\2\1\0\0"


@given(st.integers(1, 700), st.integers(0, 30_000))
def test_each_row_is_in_one_command(count: int, size: int) -> None:
    items = [new_item(n, payload=bytes(size)) for n in range(1, count + 1)]
    made = inserts().commands(items, narrow_rows(items), MAX_BYTES)
    assert made is not None
    assert sum(rows for _, rows in made) == 2 * count
    assert {rows for _, rows in made} <= set(SIZES)
    assert max(len(command) for command, _ in made) <= MAX_BYTES + 64 * 100
    assert size > 10_000 or [rows for _, rows in made].count(1) <= 2


def test_types_are_sent_once_and_again_after_an_error() -> None:
    made = inserts()

    def lengths(items: list[NewItem]) -> list[int]:
        commands = made.commands(items, narrow_rows(items), MAX_BYTES)
        assert commands is not None
        return [len(command) for command, _ in commands]

    first, second = lengths([new_item(1)]), lengths([new_item(2)])
    assert [a - b for a, b in zip(first, second, strict=True)] == [2 * 11, 2 * 5]
    made.forget_types()
    assert lengths([new_item(3)]) == first


def test_a_large_item_goes_as_text() -> None:
    """The same limit as in hex, so that a batch is refused or stored in either form."""
    items = [new_item(1), new_item(2, payload=bytes(MAX_BYTES // 2))]
    assert inserts().commands(items, narrow_rows(items), MAX_BYTES) is None


@pytest.mark.parametrize(
    "item", [new_item(priority=1 << 31), new_item(lease_ms=-(1 << 31) - 1), new_item(delivery=128)]
)
def test_a_number_out_of_range_has_no_bytes(item: NewItem) -> None:
    with pytest.raises(StructError):
        inserts().commands([item], narrow_rows([item]), MAX_BYTES)
