"""Many rows in one string, made by the server, for a driver that reads rows in Python.

PyMySQL takes 7 to 13 us of CPU for each row of a page or of bodies; so packed it takes 2 and 4. mysqlclient reads
rows in C and is faster without. A result that does not fit the server's bound on such strings is cut there without
an error, so one that comes near that bound is not used: None is returned and the rows are read plainly.
"""

from __future__ import annotations

from typing import Any

from foqs.rows import Body, Key, ReadyRow
from foqs.store import queries
from foqs.store.dialect import Dialect
from foqs.store.link import Link

MAX_BYTES = 8 << 20
_SLACK_BYTES = 16
_READY = "priority, deliver_after, id, attempt, lease, bytes"
_HEAD = (
    "i.id, i.lane, i.priority, i.deliver_after, i.enqueued_at, i.expires_at, i.lease_ms, i.delivery, "
    "LENGTH(i.payload), IFNULL(LENGTH(i.metadata), -1), IFNULL(LENGTH(i.headers), -1)"
)
_HEAD_COLUMNS = 11


def set_up(max_packet_bytes: int) -> tuple[str, int]:
    """The statement that raises the session's bound, and the bound."""
    bound = min(MAX_BYTES, max_packet_bytes // 2)
    return f"SET SESSION group_concat_max_len = {bound:d}", bound - _SLACK_BYTES


def page(link: Link, dialect: Dialect, lane: int, after: Key | None, limit: int, bound: int) -> list[ReadyRow] | None:
    """As `queries.page`."""
    rows = queries.page(dialect, lane, after, limit)
    ((text,),) = link.fetch(f"SELECT GROUP_CONCAT(CONCAT_WS(',', {_READY})) FROM ({rows}) AS page")
    if text is None:
        return []
    if len(text) > bound:
        return None
    numbers = iter(map(int, text.split(",")))
    # The order of a string of rows is not promised; they come in order all the same, and sorting them costs nothing.
    return sorted([ReadyRow(lane, *row) for row in zip(*[numbers] * 6, strict=True)])


def page_of_lanes(link: Link, dialect: Dialect, lanes: list[int], limit: int, bound: int) -> list[ReadyRow] | None:
    """As `queries.page_of_lanes`."""
    rows = queries.page_of_lanes(dialect, lanes, limit)
    ((text,),) = link.fetch(f"SELECT GROUP_CONCAT(CONCAT_WS(',', lane, {_READY})) FROM ({rows}) AS page")
    if text is None:
        return []
    if len(text) > bound:
        return None
    numbers = iter(map(int, text.split(",")))
    return sorted(map(ReadyRow._make, zip(*[numbers] * 7, strict=True)))


def bodies(link: Link, dialect: Dialect, ids: list[int], bound: int) -> list[Body] | None:
    """As `queries.bodies`: all numbers and lengths in one string, all bytes in another."""
    ((heads, data),) = link.fetch(
        f"SELECT GROUP_CONCAT(CONCAT_WS(',', {_HEAD})), "
        "GROUP_CONCAT(i.payload, IFNULL(i.metadata, ''), IFNULL(i.headers, '') SEPARATOR '') "
        f"FROM {dialect.forced('item', 'i')} WHERE i.id IN ({','.join(map(str, ids))})"
    )
    if heads is None:
        return []
    if len(heads) > bound or len(data) > bound:
        return None
    found: list[Body] = []
    numbers = iter(map(int, heads.split(",")))
    at = 0
    for head in zip(*[numbers] * _HEAD_COLUMNS, strict=True):
        payload_bytes, metadata_bytes, headers_bytes = head[8:]
        payload = data[at : at + payload_bytes]
        at += payload_bytes
        metadata: Any = None
        headers: Any = None
        if metadata_bytes >= 0:
            metadata = data[at : at + metadata_bytes]
            at += metadata_bytes
        if headers_bytes >= 0:
            headers = data[at : at + headers_bytes]
            at += headers_bytes
        found.append(Body._make((*head[:8], payload, metadata, headers)))
    return found
