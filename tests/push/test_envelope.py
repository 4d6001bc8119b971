"""The headers and the body of a request."""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.client import Item
from foqs.push.envelope import Request, cloud_event, request_of
from foqs.push.signing import Secrets, key_of, signature
from foqs.push.target import Target

pytestmark = pytest.mark.memory

NOW = 1_900_000_000.75
KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SECRETS = Secrets({"key": KEY, "token": "t0ken"})


def item(payload: bytes = b"hello", **fields: Any) -> Item:
    return Item(id=77, topic="mail", payload=payload, enqueued_at_ms=1_900_000_000_123, attempt=3, **fields)


def request(of: Item, **fields: Any) -> Request:
    return request_of(of, Target("hook", "shop", "mail", "https://example.org/in?a=1", **fields), SECRETS, NOW)


def event(payload: bytes, content_type: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cloud_event(item(payload), "shop", content_type))
    return found


def test_the_payload_is_the_body() -> None:
    sent = request(item(), method="PUT")
    assert (sent.method, sent.url, sent.body) == ("PUT", "https://example.org/in?a=1", b"hello")
    assert sent.headers["content-type"] == "application/octet-stream"
    assert sent.headers["accept-encoding"] == "identity"
    assert (sent.headers["webhook-id"], sent.headers["webhook-timestamp"]) == ("77", "1900000000")
    assert "webhook-signature" not in sent.headers


def test_the_signature_is_of_id_time_and_body() -> None:
    sent = request(item(), secrets=("key",))
    assert sent.headers["webhook-signature"] == signature([key_of(KEY)], "77", 1_900_000_000, b"hello")
    enveloped = request(item(), secrets=("key",), envelope="cloudevents")
    assert enveloped.headers["webhook-signature"] == signature([key_of(KEY)], "77", 1_900_000_000, enveloped.body)


def test_headers_of_the_target_have_secrets() -> None:
    sent = request(item(), headers={"Authorization": "Bearer {secret:token}", "X-A": "b"})
    assert (sent.headers["authorization"], sent.headers["x-a"]) == ("Bearer t0ken", "b")


def test_a_target_cannot_replace_signed_headers() -> None:
    headers = {"Webhook-Id": "1", "webhook-signature": "v1,x", "WEBHOOK-TIMESTAMP": "0", "Accept-Encoding": "gzip"}
    sent = request(item(), headers=headers, secrets=("key",))
    assert sent.headers == request(item(), secrets=("key",)).headers


@pytest.mark.parametrize("name", ["content-type", "Content-Type"])
def test_the_item_says_its_content_type(name: str) -> None:
    assert request(item(headers={name: "text/plain; charset=utf-8"})).headers["content-type"].startswith("text/plain;")


@pytest.mark.parametrize("value", ["", "text", "a/b\r\nx-evil: 1", "a/b\nc", "ä/b", "a b/c", "a/" + "b" * 300])
def test_a_wrong_content_type_is_left_out(value: str) -> None:
    assert request(item(headers={"content-type": value})).headers["content-type"] == "application/octet-stream"


@given(st.text())
def test_no_content_type_breaks_a_header(value: str) -> None:
    sent = request(item(headers={"content-type": value})).headers["content-type"]
    assert sent.isascii()
    assert sent.isprintable()


def test_a_cloud_event() -> None:
    sent = request(item(b'{"a": 1}'), envelope="cloudevents")
    assert sent.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    found = json.loads(sent.body)
    time = found.pop("time")
    assert datetime.fromisoformat(time).timestamp() == 1_900_000_000.123
    assert found == {
        "specversion": "1.0", "id": "77", "source": "foqs/shop", "type": "mail",
        "datacontenttype": "application/json", "data": {"a": 1},
    }  # fmt: skip


@pytest.mark.parametrize("content_type", [None, "application/json", "application/json; charset=utf-8", "a/B+Json"])
def test_json_is_data(content_type: str | None) -> None:
    found = event(b" [1, null] ", content_type)
    assert found["data"] == [1, None]
    assert found["datacontenttype"] == (content_type or "application/json")


def test_numbers_of_data_keep_their_digits() -> None:
    number = b"1234567890.12345678901234567890123456789e500"
    assert number in cloud_event(item(number), "shop", None)


@pytest.mark.parametrize(
    ("payload", "content_type"),
    [
        (b"{}", "text/plain"),
        (b"hello", None),
        (b"", None),
        (b"\xff\xfe", "application/json"),
        (b"NaN", None),
        (b"[Infinity]", "application/json"),
        (b"\xef\xbb\xbf{}", None),
        (b"{}{}", None),
        (b"[" * 100_000 + b"]" * 100_000, None),
    ],
    ids=str,
)
def test_other_payloads_are_base64(payload: bytes, content_type: str | None) -> None:
    found = event(payload, content_type)
    assert b64decode(found["data_base64"]) == payload
    assert "data" not in found
    assert found["datacontenttype"] == (content_type or "application/octet-stream")


@given(st.binary(), st.text(min_size=1), st.text(min_size=1))
def test_each_event_is_json_with_the_payload(payload: bytes, ns: str, topic: str) -> None:
    found = json.loads(cloud_event(Item(id=1, topic=topic, payload=payload, enqueued_at_ms=1), ns, "a/b"))
    assert b64decode(found["data_base64"]) == payload
    assert found["type"] == topic
    assert found["source"].isascii()
