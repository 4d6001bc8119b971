"""The request for an item: its headers and its body."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn
from urllib.parse import quote

from foqs import __version__
from foqs.client.items import Item
from foqs.push.signing import Secrets, signature
from foqs.push.target import Target

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
_CONTENT_TYPE = "content-type"
_BINARY, _JSON = "application/octet-stream", "application/json"
_CLOUDEVENTS = "application/cloudevents+json; charset=utf-8"
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+( *;[ -~]*)?", re.ASCII)
_MEDIA_TYPE_BYTES = 255
_JSON_TYPE = re.compile(r"application/json|[^/]+/[^/]+\+json", re.IGNORECASE)


@dataclass(frozen=True)
class Request:
    """One request. `headers` are in lower case."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


def request_of(item: Item, target: Target, secrets: Secrets, now_s: float) -> Request:
    """Return the request of an attempt at `now_s`, Unix epoch seconds. Raises Invalid if a secret is missing or cannot
    be used."""
    content_type = _content_type(item)
    if target.envelope == "cloudevents":
        body, sent_type = cloud_event(item, target.ns, content_type), _CLOUDEVENTS
    else:
        body, sent_type = item.payload, content_type or _BINARY
    headers = {_CONTENT_TYPE: sent_type, "user-agent": f"foqs/{__version__}"}
    headers |= {name.lower(): secrets.filled(value) for name, value in target.headers.items()}
    message_id, at_s = str(item.id), int(now_s)
    headers |= {"accept-encoding": "identity", ID: message_id, TIMESTAMP: str(at_s)}
    if target.secrets:
        headers[SIGNATURE] = signature(secrets.keys(target), message_id, at_s, body)
    return Request(target.method, target.url, headers, body)


def cloud_event(item: Item, ns: str, content_type: str | None) -> bytes:
    """Return the item as a CloudEvents 1.0 event in JSON. Its `data` is the payload's own text if that is JSON, so
    numbers keep their digits."""
    event = {
        "specversion": "1.0",
        "id": str(item.id),
        "source": f"foqs/{quote(ns, safe='')}",
        "type": item.topic,
        "time": datetime.fromtimestamp(item.enqueued_at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
    }
    text = _json_text(item.payload) if content_type is None or _says_json(content_type) else None
    if text is None:
        event["datacontenttype"] = content_type or _BINARY
        event["data_base64"] = b64encode(item.payload).decode()
        return json.dumps(event).encode()
    event["datacontenttype"] = content_type or _JSON
    return f'{json.dumps(event)[:-1]}, "data": {text}}}'.encode()


def _content_type(item: Item) -> str | None:
    """Return what the item's header says, if that is a media type: it may hold anything."""
    for name, value in (item.headers or {}).items():
        if name.lower() == _CONTENT_TYPE and len(value) <= _MEDIA_TYPE_BYTES and _MEDIA_TYPE.fullmatch(value):
            return value
    return None


def _says_json(content_type: str) -> bool:
    return _JSON_TYPE.fullmatch(content_type.partition(";")[0].strip()) is not None


def _json_text(payload: bytes) -> str | None:
    try:
        text = payload.decode()
        json.loads(text, parse_constant=_no_constant, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    return text


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
