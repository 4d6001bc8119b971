"""One item: its fields, why it waits, what failed, how far its work is, and its payload where a user asks for it."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import structlog
from starlette.responses import RedirectResponse, Response

from foqs.checks import printable
from foqs.client import Delivery, Explanation, Item, ItemState
from foqs.client.rules import rules_json
from foqs.console.payload_text import KINDS, kind_of, payload_text
from foqs.console.reasons import limit_links, shown
from foqs.console.view import Page, View, path_of
from foqs.errors import Invalid, NotFound
from foqs.idl import trace_of
from foqs.ids import parse_id
from foqs.page.words import ago, duration, moment

_audit_log = structlog.get_logger("foqs.audit")

_DELIVERY: Mapping[int, str] = {Delivery.AT_LEAST_ONCE: "at least once", Delivery.AT_MOST_ONCE: "at most once"}
_ENDED = (ItemState.COMPLETED, ItemState.FAILED)


async def load(view: View) -> Mapping[str, Any] | Response:
    item_id = parse_id(view.request.path_params["id"])
    try:
        item, explained = await asyncio.gather(view.client.get_item(item_id), _explained(view, item_id))
    except NotFound:
        raise NotFound(
            f"no item has the id {item_id}: it was acked, deleted or dropped, or its TTL ended, and its topic does not "
            "keep it; or it never was, or it is in a namespace that you may not look at"
        ) from None
    if item.ns != view.ns:  # links and changes of the page are of its namespace
        return RedirectResponse(view.url(f"/items/{item_id}", ns=item.ns, payload=view.asked("payload")), 303)
    kind, payload = view.asked("payload"), None
    if kind in KINDS:
        _audit_log.info("audit.payload", who=view.session.principal, ns=item.ns, id=item.id)
        payload = await payload_text(item.payload, kind)
    result = None if item.result is None else await payload_text(item.result, kind_of(item.result))
    trace = trace_of(SimpleNamespace(traceparent=(item.headers or {}).get("traceparent")))
    return {
        "item": item, "explained": explained,
        "reasons": [] if explained is None else shown(view, explained, item.topic),
        "limits": [
            (one, limit_links(view, one, item.topic)) for one in ([] if explained is None else explained.limits)
        ],
        "words": state_words(item, view.now_ms), "payload": payload, "kinds": KINDS, "result": result,
        "rules": [] if item.rules is None else [(name, _rule(rule)) for name, rule in rules_json(item.rules).items()],
        "delivery": _DELIVERY.get(item.delivery, str(item.delivery)), "trace": trace.get("trace_id"),
        "ended": item.state in _ENDED, "topic_url": view.url(path_of("/topics", "topic", item.topic)),
        "end_of": _number(item, "foqs-batch"), "after": _number(item, "foqs-after"),
        "refreshes": payload is None, "commands": copy_commands(item, view.client.address),
    }  # fmt: skip


async def _explained(view: View, item_id: int) -> Explanation | None:
    try:
        return await view.client.explain(item_id)
    except NotFound:
        return None


def _number(item: Item, header: str) -> int | None:
    """Return the id in a header; None if it has another text, as any client may write headers."""
    try:
        return parse_id((item.headers or {}).get(header, ""))
    except Invalid:
        return None


def _rule(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def copy_commands(item: Item, address: str) -> tuple[str, str]:
    """Return the commands for a shell that enqueue a copy of an item: in its own topic, and in another one."""
    options = [f"--address={address}", f"--ns={item.ns}"]
    read = shlex.join(["foqs", "item", str(item.id), *options])
    copy = ["foqs", "enqueue", "--copy"]
    return f"{read} | {shlex.join([*copy, *options])}", f"{read} | {shlex.join([*copy, 'TOPIC', *options])}"


def state_words(item: Item, now_ms: int) -> str:
    """Return a sentence about the state of an item, with its time."""
    match item.state:
        case ItemState.READY if item.failure is not None:
            return (
                f"A dead letter: it stays in {printable(item.topic)} until a redrive, a delete or the end of its TTL."
            )
        case ItemState.READY:
            return f"A consumer may lease it now, and since {_at(item.deliver_after_ms, now_ms)}."
        case ItemState.DELAYED:
            left_ms = max(0, item.deliver_after_ms - now_ms)
            return f"No consumer gets it before {moment(item.deliver_after_ms)}, in {duration(left_ms)}."
        case ItemState.LEASED if item.lease_expires_at_ms > now_ms:
            left = duration(item.lease_expires_at_ms - now_ms)
            return f"A consumer works on it. Its lease ends at {moment(item.lease_expires_at_ms)}, in {left}."
        case ItemState.LEASED:
            return f"A consumer has it, and its lease ended at {_at(item.lease_expires_at_ms, now_ms)}."
        case ItemState.COMPLETED:
            return f"It was acked at {_at(item.ended_at_ms or 0, now_ms)}, and its topic keeps it for a time."
        case ItemState.FAILED:
            return f"It failed for good at {_at(item.ended_at_ms or 0, now_ms)}, and its topic keeps it for a time."
    return f"It waits for an earlier item of the order key {printable(item.order_key)}." if item.order_key else ""


def _at(at_ms: int, now_ms: int) -> str:
    return f"{moment(at_ms)} ({ago(now_ms - at_ms)})"


PAGE = Page("/items/{id}", "Item", "item.html", load, home="/items")
