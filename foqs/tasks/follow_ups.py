"""The calls that follow a task: in a header of its item until it has succeeded, then items of their own. Pure.

A worker enqueues the follow-up before it acks the item, so a worker that dies in between leaves both: the task runs
again, and enqueues the follow-up again. Its dedup key is made of the item's id, so it is stored once within the window
of such keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from foqs.client import DedupUntil, Invalid, ItemSpec
from foqs.client.handlers import TASK_HEADER, WrongArgument
from foqs.client.item_copies import spec_json, spec_of_line
from foqs.tasks.codecs import CONTENT_TYPE, Codecs

THEN_HEADER = "foqs-then"
AFTER_HEADER = "foqs-after"
"""The id of the item before, in a follow-up."""
_KEY = "foqs-then:"
_USUAL = spec_json(ItemSpec("", b""))


def header_of(steps: Sequence[ItemSpec]) -> str:
    """Return the header with the follow-ups, the next one first: a JSON list."""
    return _text([_entry(spec) for spec in steps])


def _entry(spec: ItemSpec) -> dict[str, Any]:
    """Return what an item has apart from its arguments, without the usual values. A key that the user gave stays."""
    headers = {name: value for name, value in (spec.headers or {}).items() if name != CONTENT_TYPE}
    kept = replace(spec, headers=headers, dedup_key=None if spec.dedup_until is None else spec.dedup_key)
    return {name: value for name, value in spec_json(kept).items() if value != _USUAL.get(name)}


def members_of(headers: Mapping[str, str], batch: int) -> Mapping[str, str]:
    """Return the headers with all follow-ups as members of the batch."""
    if THEN_HEADER not in headers:
        return headers
    return {
        **headers,
        THEN_HEADER: _text([{**entry, "batch": str(batch)} for entry in json.loads(headers[THEN_HEADER])]),
    }


class FollowUp(NamedTuple):
    """The next call, without its arguments. `rest`: the header with the further calls; "" without."""

    task: str
    spec: ItemSpec
    rest: str


def follow_up_of(header: str) -> FollowUp:
    """Return the next call. Raises WrongArgument for a header that is none of `header_of`."""
    try:
        entry, *rest = json.loads(header)
        spec = spec_of_line(json.dumps(entry).encode(), topic="")
        task = (spec.headers or {})[TASK_HEADER]
    except Invalid as error:
        raise WrongArgument(f"the header {THEN_HEADER} is no list of follow-ups: {error.message}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise WrongArgument(f"the header {THEN_HEADER} is no list of follow-ups: {error}") from None
    return FollowUp(task, spec, _text(rest) if rest else "")


def item_of(follow_up: FollowUp, args: Sequence[Any], after: int, codecs: Codecs) -> ItemSpec:
    """Return the item that follows the item `after`. Raises the errors of the codec."""
    spec, codec = follow_up.spec, codecs.writes
    headers = {**(spec.headers or {}), CONTENT_TYPE: codec.content_type, AFTER_HEADER: str(after)}
    if follow_up.rest:
        headers[THEN_HEADER] = follow_up.rest
    payload = codec.encode({"args": list(args), "kwargs": {}}, codecs.of_arguments(follow_up.task))
    if spec.dedup_key is None and not spec.order_key:  # either decides the shard, and keeps the user's promise
        spec = replace(spec, dedup_key=f"{_KEY}{after}", dedup_until=DedupUntil.WINDOW)
    return replace(spec, payload=payload, headers=headers)


def _text(entries: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(entries, ensure_ascii=False, separators=(",", ":"))
