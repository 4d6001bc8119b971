"""Writes leased items as lines on stdout, and gives back those whose lines cannot be written."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from foqs.cli.errors import fail
from foqs.cli.streams import discard_stdout, write_line

if TYPE_CHECKING:
    from foqs.client import Client, Item


def write_items(client: Client, items: Sequence[Item], *, to_ack: bool) -> None:
    """Write a JSON line for each item. If that fails, release the items that were not written, and raise.

    Each line is flushed, so a reader that leaves (`| head -1`) costs no other item its lease. Ends the command if
    stdout fails in another way, as a full disk does.
    """
    from foqs.client.item_copies import item_json

    written = 0
    try:
        for item in items:
            write_line(item_json(item))
            sys.stdout.flush()
            written += 1
    except BaseException as error:
        _give_back(client, items[written:])
        if to_ack and written:
            _say(
                f"{written} written items are not acked, because the reader may not have read them; they are delivered "
                "again when their leases end, except at-most-once items"
            )
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            discard_stdout()
            fail(f"cannot write to stdout: {error.strerror or error}")
        raise


def _give_back(client: Client, items: Sequence[Item]) -> None:
    outcomes = client.release_many(items)
    once = [(item, error) for item, error in zip(items, outcomes, strict=True) if item.at_most_once]
    _name("at-most-once items given back without being written", [i for i, error in once if error is None])
    if failed := [error for error in outcomes if error is not None]:
        why = f"{failed[0].code.name}: {failed[0]}"
        _name(f"at-most-once items lost: neither written nor given back ({why})", [i for i, e in once if e])
        if again := len(failed) - sum(error is not None for _, error in once):
            _say(f"{again} items neither written nor given back ({why}): they are delivered again after their leases")


def _name(what: str, items: Sequence[Item]) -> None:
    if items:
        _say(f"{what}: {', '.join(str(item.id) for item in items)}")


def _say(message: str) -> None:
    print(f"foqs: {message}", file=sys.stderr)
