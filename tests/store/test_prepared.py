"""The binary protocol of new items: commands, replies, and pieces of a batch."""

from __future__ import annotations

import io
from collections.abc import Callable
from struct import error as StructError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.rows import NewItem
from foqs.store.packets import (
    COM_STMT_CLOSE,
    SIZES,
    BadReply,
    Err,
    Inserts,
    close_command,
    prepare_commands,
    read_prepared,
)
from foqs.store.statements import narrow_rows
from tests.store.replies import err, packet
from tests.store.shards import new_item

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
