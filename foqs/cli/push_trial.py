"""`foqs push try`: one test request to the endpoint of a target, and what its reply would do with an item."""

from __future__ import annotations

from random import getrandbits
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from foqs.cli.push_secrets import SecretFiles
from foqs.cli.push_targets import target_of
from foqs.client import Item
from foqs.errors import Invalid
from foqs.push.addresses import Allow
from foqs.push.envelope import ID, request_of
from foqs.push.exchange import Exchange
from foqs.push.replies import settlement
from foqs.push.signing import Secrets, names_of

if TYPE_CHECKING:
    from foqs.config.schema import PushSection

_ID_BITS = 47
"""Of the id. The id of an item is longer: it begins with the number of a shard."""


async def trial(
    ns: str, name: str, text: str, section: PushSection, payload: bytes, content_type: str
) -> dict[str, Any]:
    """Send a request, and return the fields to show. `text`: the setting of the target. Raises Invalid for a target
    that no process of this configuration could serve."""
    target = target_of(ns, name, text)
    files = SecretFiles()
    secrets = Secrets(files.refresh(section.secrets)).of(target)
    if faults := [files.faults[one] for one in names_of(target) if one in files.faults]:
        raise Invalid("\n".join(faults))
    secrets.check(target)
    item = Item(
        id=1 + getrandbits(_ID_BITS),
        attempt=1,
        ns=ns,
        topic=target.topic,
        payload=payload,
        headers={"content-type": content_type},
        enqueued_at_ms=int(time() * 1000),
    )
    exchange = Exchange(target, Allow.parse(section.allow))
    try:
        request = request_of(item, target, secrets, time())
        began = monotonic()
        reply = await exchange.send(request)
        took_ms = round((monotonic() - began) * 1000)
    finally:
        await exchange.close()
    settled = settlement(reply, time())
    found: dict[str, Any] = {
        "method": target.method, "url": target.url, "webhook_id": request.headers[ID], "status": reply.status,
        "outcome": settled.end, "took_ms": took_ms,
    }  # fmt: skip
    if settled.reason:
        found["reason"] = settled.reason
    if settled.end == "release":
        found["again_after_ms"] = settled.delay_ms
    if reply.status is not None:
        found["body"] = "(longer than 64 KiB)" if reply.body is None else reply.body.decode(errors="replace")
    return found
