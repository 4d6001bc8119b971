"""The packets of MySQL's and MariaDB's protocol that a transaction needs. Pure: bytes in, bytes out.

A packet is its length (three bytes), a sequence id and a payload. A command is one packet with the id 0. Its reply is
one OK packet a statement, each but the last with the flag for more results, or an ERR packet as the last one; their ids
count on from 1.

New items travel as parameters of prepared INSERTs. A server takes longer to parse a row of literals than to store it,
and hex doubles a payload. A connection prepares an INSERT for each of `SIZES`; the rows of a transaction are cut into
pieces of these sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from foqs.rows import NewItem
from foqs.store.dialect import Statement
from foqs.store.statements import ITEM, READY, NarrowRows

COM_QUERY = 3
MOST_BYTES = 0xFFFFFF - 1
"""Payload of a packet, the command's byte included. A longer payload would need a second packet."""

_OK, _ERR = 0x00, 0xFF
_MORE_RESULTS = 0x0008
_HEAD_BYTES = 4
_ERR_BYTES = 3
_OK_BYTES = 5
"""Of an OK packet with small numbers, up to its flags."""
_REPLY_BYTES = 1 << 16
"""Bound on a reply's packet, so that a damaged length is an error and not a wait."""
_WIDTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}
command_head = Struct("<IB").pack  # the sequence id 0 is the highest byte of the first number
_u16 = Struct("<H").unpack_from

SIZES = (32, 16, 8, 4, 2, 1)
"""Rows of a statement. MariaDB keeps 12 statements in 0.9 MB for a connection, and 16,382 for all."""

COM_STMT_PREPARE, COM_STMT_EXECUTE, COM_STMT_CLOSE = 0x16, 0x17, 0x19
TINY, _LONG, LONGLONG, _BLOB = b"\x01\0", b"\x03\0", b"\x08\0", b"\xfc\0"
ITEM_ROW = "(?,?,?,?,?,?,?,?,?,?,?)"
ITEM_TYPES = LONGLONG + _LONG * 2 + LONGLONG * 3 + _LONG + TINY + _BLOB * 3
ITEM_PARAMETERS = 11
_METADATA, _HEADERS = 8, 9
READY_ROW = "(?,?,?,?,0,0,?)"
READY_TYPES = _LONG * 2 + LONGLONG * 2 + _LONG
READY_PARAMETERS = 5
_ROW_BYTES = 64
"""Bound on a row of `item` without its bytes, and its part of types and NULL bits."""
_pack_item = Struct("<qiiqqqib").pack
pack_ready = Struct("<iiqqi").pack
pack_statement = Struct("<IBI").pack  # statement, no cursor, one iteration
_prepared = Struct("<xIHH").unpack_from
_pack_number = Struct("<I").pack
_LENGTHS = [bytes([length]) for length in range(251)]


class Ok(NamedTuple):
    """One statement was run; `more`: the reply to another one of the same command follows."""

    rows: int
    more: bool


_SMALL = 0xFB
"""Numbers below are one byte."""
_OKS = [(Ok(rows, more=False), Ok(rows, more=True)) for rows in range(_SMALL)]


class Err(NamedTuple):
    """A command ended at a statement that failed; no statement after it was run."""

    code: int
    sqlstate: str
    message: str


class BadReply(Exception):
    """The bytes are no reply that a statement without rows may have. The connection cannot be used again."""


def command(code: int, payload: bytes) -> bytes:
    """Return the packet of a command. Raises ValueError for a payload that does not fit in one."""
    size = len(payload) + 1
    if size > MOST_BYTES:
        raise ValueError(f"a command of {size:,} bytes does not fit in one packet")
    return command_head(size, code) + payload


def query(text: str) -> bytes:
    """Return the packet of one or several statements."""
    return command(COM_QUERY, text.encode())


class Replies:
    """Reads replies from bytes in pieces of any size.

    Replies to several commands may follow one another: ids begin again after the last packet of each.
    """

    __slots__ = ("_rest", "_sequence")

    def __init__(self) -> None:
        self._rest = b""
        self._sequence = 1

    @property
    def partial(self) -> bool:
        """Return True if a packet has begun and not ended."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[Ok | Err]:
        """Return the replies that end in `data`, in order. Raises BadReply."""
        if self._rest:
            data = self._rest + data
        made: list[Ok | Err] = []
        at, end = 0, len(data)
        while end - at >= _HEAD_BYTES:
            size = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            if not 0 < size <= _REPLY_BYTES:
                raise BadReply(f"a reply of {size:,} bytes")
            body = at + _HEAD_BYTES
            stop = body + size
            if stop > end:
                break
            # A server that ends a connection on its own account counts from 0.
            if data[at + 3] != self._sequence and (data[at + 3] != 0 or data[body] != _ERR):
                raise BadReply(f"packet {data[at + 3]} instead of {self._sequence}")
            if size >= _OK_BYTES and data[body] == _OK and data[body + 1] < _SMALL and data[body + 2] < _SMALL:
                more = data[body + 3] & _MORE_RESULTS != 0
                made.append(_OKS[data[body + 1]][more])
            else:
                reply = _reply(data[body:stop])
                made.append(reply)
                more = isinstance(reply, Ok) and reply.more
            self._sequence = self._sequence + 1 & 0xFF if more else 1
            at = stop
        self._rest = data[at:]
        return made


def error_in(body: bytes) -> Err | None:
    """Return the error of an ERR packet, None for any other. Raises BadReply."""
    if body[:1] != b"\xff":
        return None
    if len(body) < _ERR_BYTES:
        raise BadReply("a packet ends within a number")
    code = _u16(body, 1)[0]
    if body[3:4] == b"#":
        return Err(code, body[4:9].decode("ascii", "replace"), body[9:].decode("utf-8", "replace"))
    return Err(code, "", body[3:].decode("utf-8", "replace"))


def _reply(body: bytes) -> Ok | Err:
    kind = body[0]
    try:
        if kind == _OK:
            rows, at = _number(body, 1)
            _, at = _number(body, at)  # the last id that the server generated
            return Ok(rows, _u16(body, at)[0] & _MORE_RESULTS != 0)
        if (error := error_in(body)) is not None:
            return error
    except (IndexError, StructError):
        raise BadReply("a packet ends within a number") from None
    raise BadReply(f"a packet of kind {kind:#04x}")


def _number(body: bytes, at: int) -> tuple[int, int]:
    """Read a length-encoded integer; return it and where it ends."""
    first = body[at]
    at += 1
    if first < _SMALL:
        return first, at
    width = _WIDTHS.get(first)
    if width is None:
        raise BadReply(f"a number that begins with {first:#04x}")
    stop = at + width
    if stop > len(body):
        raise IndexError
    return int.from_bytes(body[at:stop], "little"), stop


# ------------------------------------------------------------------------------------------------ prepared INSERTs


class Prepared:
    """A prepared statement. `typed`: its connection has sent the types of its parameters."""

    __slots__ = ("_head", "_null_bytes", "_types", "typed")

    def __init__(self, number: int, parameters: int, types: bytes) -> None:
        self.typed = False
        self._head = pack_statement(number, 0, 1)
        self._null_bytes = (parameters + 7) // 8
        self._types = types

    def execute(self, nulls: int, values: list[bytes]) -> bytes:
        bits = nulls.to_bytes(self._null_bytes, "little")
        types = b"\0" if self.typed else b"\1" + self._types
        made = command(COM_STMT_EXECUTE, b"".join([self._head, bits, types, *values]))
        self.typed = True
        return made


class Inserts:
    """The prepared INSERTs of one connection. `numbers` identify the statements of `prepare_commands`, in order."""

    def __init__(self, numbers: Sequence[int]) -> None:
        count = len(SIZES)
        self._items = _by_size(numbers[:count], ITEM_PARAMETERS, ITEM_TYPES)
        self._ready = _by_size(numbers[count:], READY_PARAMETERS, READY_TYPES)

    def forget_types(self) -> None:
        """Send them again: a server that refused a command may not have read them."""
        for statements in (self._items, self._ready):
            for statement in statements.values():
                statement.typed = False

    def commands(self, items: Sequence[NewItem], rows: NarrowRows, max_bytes: int) -> list[Statement] | None:
        """Return the commands that insert the bodies of `items`, then `rows.ready`, each with its number of rows.

        Return None for an item that needs more than half of `max_bytes`. Raises struct.error for a number that is out
        of its column's range.
        """
        sizes = [len(item.payload) + len(item.metadata or b"") + len(item.headers or b"") for item in items]
        if 2 * (max(sizes) + _ROW_BYTES) > max_bytes:
            return None
        made: list[Statement] = []
        for start, stop in _pieces(sizes, max_bytes):
            statement = self._items[stop - start]
            made.append((statement.execute(*item_values(items[start:stop])), stop - start))
        for start, stop in _pieces([0] * len(rows.ready), max_bytes):
            values = [pack_ready(*row) for row in rows.ready[start:stop]]
            made.append((self._ready[stop - start].execute(0, values), stop - start))
        return made


def prepare_commands() -> list[bytes]:
    """Return the commands that prepare the statements of `Inserts`."""
    texts = [
        f"INSERT INTO {table} VALUES {','.join([row] * size)}"
        for table, row in ((ITEM, ITEM_ROW), (READY, READY_ROW))
        for size in SIZES
    ]
    return [command(COM_STMT_PREPARE, text.encode()) for text in texts]


def read_prepared(read: Callable[[int], bytes]) -> int | Err:
    """Return the number of a statement from the reply to its command. Raises BadReply, and what `read` raises."""
    body = _read_packet(read)
    if (error := error_in(body)) is not None:
        return error
    if body[0] != 0 or len(body) < 9:
        raise BadReply("no reply to a statement that is prepared")
    number, columns, parameters = _prepared(body)
    for count in (parameters, columns):
        for _ in range(count + 1 if count else 0):  # definitions, and a packet that ends them
            _read_packet(read)
    return int(number)


def close_command(number: int) -> bytes:
    """The command that frees a statement; it has no reply."""
    return command(COM_STMT_CLOSE, _pack_number(number))


def _read_packet(read: Callable[[int], bytes]) -> bytes:
    head = read(4)
    return read(int.from_bytes(head[:3], "little"))


def _by_size(numbers: Sequence[int], parameters: int, types: bytes) -> dict[int, Prepared]:
    return {
        size: Prepared(number, size * parameters, size * types) for size, number in zip(SIZES, numbers, strict=True)
    }


def _pieces(sizes: list[int], max_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut rows of these bytes into pieces with a statement each."""
    start, count = 0, len(sizes)
    for size in SIZES:
        while count - start >= size and (
            size == 1 or sum(sizes[start : start + size]) + size * _ROW_BYTES <= max_bytes
        ):
            yield start, start + size
            start += size


def item_values(items: Sequence[NewItem]) -> tuple[int, list[bytes]]:
    """Return NULL bits and values of the bodies."""
    nulls = 0
    values: list[bytes] = []
    for at, item in enumerate(items):
        key = (item.id, item.lane, item.priority, item.deliver_after_ms)
        values.append(_pack_item(*key, item.enqueued_at_ms, item.expires_at_ms, item.lease_ms, item.delivery))
        for parameter, data in ((_METADATA, item.metadata), (_HEADERS, item.headers)):
            if data is None:
                nulls |= 1 << ITEM_PARAMETERS * at + parameter
            else:
                values += (_length(data), data)
        values += (_length(item.payload), item.payload)
    return nulls, values


def _length(data: bytes) -> bytes:
    """A length-encoded integer."""
    size = len(data)
    if size < len(_LENGTHS):
        return _LENGTHS[size]
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little")
    return b"\xfd" + size.to_bytes(3, "little") if size < 1 << 24 else b"\xfe" + size.to_bytes(8, "little")
