"""Replies as servers write them."""

from __future__ import annotations

from itertools import pairwise

from pymysql.constants import SERVER_STATUS

MORE = SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS


def number(value: int) -> bytes:
    """A length-encoded integer in its shortest form, as servers write it."""
    if value < 0xFB:
        return bytes([value])
    for first, width in ((0xFC, 2), (0xFD, 3), (0xFE, 8)):
        if value < 1 << 8 * width:
            return bytes([first]) + value.to_bytes(width, "little")
    raise AssertionError(value)


def packet(sequence: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([sequence & 0xFF]) + body


def ok(rows: int, *, more: bool = False, last_id: int = 0, info: bytes = b"") -> bytes:
    status = 3 | (MORE if more else 0)
    return b"\0" + number(rows) + number(last_id) + status.to_bytes(2, "little") + b"\0\0" + info


def err(code: int, message: bytes = b"no", sqlstate: bytes = b"#HY000") -> bytes:
    return b"\xff" + code.to_bytes(2, "little") + sqlstate + message


def reply(*rows: int, failed: bytes = b"") -> bytes:
    """The reply to one command of several statements."""
    bodies = [ok(one, more=bool(failed) or at + 1 < len(rows), info=b"x" * (at % 3)) for at, one in enumerate(rows)]
    if failed:
        bodies.append(failed)
    return b"".join(packet(at + 1, body) for at, body in enumerate(bodies))


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]
