"""The values of `push.<name>`: what they may hold, and what an error says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foqs.errors import Invalid
from foqs.policies.push import LONGEST_MS, PushEntry, parse_push
from foqs.policies.settings import Settings

URL = "https://hooks.example.com/orders?source=foqs"


def entry(**given: Any) -> PushEntry:
    return parse_push(json.dumps({"topic": "orders", "url": URL} | given))


def error(**given: Any) -> str:
    with pytest.raises(Invalid) as raised:
        entry(**given)
    return raised.value.message


def test_what_a_target_has_by_default() -> None:
    assert dict(entry()) == {
        "topic": "orders", "url": URL, "method": "POST", "headers": {}, "concurrency": 10, "timeout_ms": 30_000,
        "secrets": (), "envelope": "none",
    }  # fmt: skip


def test_secrets_sign_or_are_in_headers() -> None:
    headers = {"Authorization": "Bearer {secret:api.token}", "X-Two": "{secret:old}:{secret:b-2}", "X-Not": "{old}"}
    one = entry(secrets=["new", "old"], headers=headers)
    assert (one.secrets, one.headers) == (("new", "old"), headers)


def test_an_envelope_has_its_own_content_type() -> None:
    entry(headers={"Content-Type": "text/plain"})
    said = "headers: the envelope cloudevents has a content-type of its own"
    assert error(headers={"Content-Type": "text/plain"}, envelope="cloudevents") == said


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000/", "https://[2001:db8::1]:8443/a/b;c?d=%C3%A9&e=f@g", "HTTPS://hooks.example.com",
        "https://xn--bcher-kva.example/~a/'b'", "https://h:443", f"https://h/{'a' * 2_038}",
    ],
)  # fmt: skip
def test_urls_of_endpoints(url: str) -> None:
    assert entry(url=url).url == url


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "1 to 2048 characters, not 0"),
        (f"https://h/{'a' * 2_039}", "1 to 2048 characters, not 2049"),
        ("hooks.example.com/orders", "no absolute URL that begins with https:// or http://"),
        ("/orders", "no absolute URL"),
        ("ftp://h/orders", "no absolute URL"),
        ("https:///orders", "no absolute URL"),
        ("https:orders", "no absolute URL"),
        ("https://:443/", "no absolute URL"),
        ("https://user@h/", "a user or a password: give them in a header"),
        ("https://user:password@h/", "a user or a password"),
        ("https://@h/", "a user or a password"),
        ("https://h/orders#top", "a fragment"),
        ("https://h/#", "a fragment"),
        ("https://h:0/", "the port is not from 1"),
        ("https://h:65536/", "the host or the port is wrong"),
        ("https://h:port/", "the host or the port is wrong"),
        ("https://[::1/", "the host or the port is wrong"),
        ("https://bücher.example/", "ASCII characters alone"),
        ("https://h/a b", "ASCII characters alone"),
        ("https://h\\@evil/", "ASCII characters alone"),
        ("https://h/\r\nX: y", "ASCII characters alone"),
        ("https://h/{secret:a}", "ASCII characters alone"),
    ],
)
def test_texts_that_are_no_url_of_an_endpoint(url: str, said: str) -> None:
    found = error(url=url)
    assert found.startswith("url: ") and said in found


@pytest.mark.parametrize(
    "name", ["Connection", "transfer-encoding", "TE", "Trailer", "Upgrade", "Keep-Alive", "Proxy-Authorization", "Host",
             "content-length", "Expect", "Accept-Encoding"],
)  # fmt: skip
def test_headers_of_the_connection_are_foqs_s_own(name: str) -> None:
    assert error(headers={name: "x"}) == (
        f"headers.{name if name.isidentifier() else json.dumps(name)}: foqs sets this header itself, or leaves it out"
    )


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"webhook-id": "1"}, "headers of signatures are foqs's own"),
        ({"Webhook-Signature": "v1,x"}, "headers of signatures are foqs's own"),
        ({"": "x"}, "no name of a header"),
        ({"X Y": "x"}, "no name of a header"),
        ({"X:": "x"}, "no name of a header"),
        ({"X": "a\r\nHost: b"}, "printable ASCII characters alone"),
        ({"X": "ä"}, "printable ASCII characters alone"),
        ({"X": 1}, "it must be a text"),
        ({"X-Key": "a", "x-key": "b"}, "X-Key and x-key are one header"),
        ({"X": "{secret:}"}, "{secret:}: the name of a secret"),
        ({"X": "{secret:../a}"}, "{secret:../a}: the name of a secret"),
        ({"X": "Bearer {secret:a"}, "write a secret as {secret:NAME}"),
        ({"X": "{secret:a{secret:b}"}, "write a secret as {secret:NAME}"),
    ],
)
def test_what_headers_may_not_have(headers: dict[str, Any], said: str) -> None:
    assert said in error(headers=headers)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": ""}, "topic: a name has 1 to"),
        ({"topic": "a\nb"}, "topic: a name has no control characters"),
        ({"method": "GET"}, "method: it must be 'POST', 'PUT' or 'PATCH', not \"GET\""),
        ({"concurrency": 0}, "concurrency: it must be 1 or more, not 0"),
        ({"concurrency": 1_001}, "concurrency: it must be 1000 or less"),
        ({"concurrency": 1.5}, "concurrency: it must be a whole number"),
        ({"timeout_ms": 99}, "timeout_ms: it must be 100 or more"),
        ({"timeout_ms": LONGEST_MS + 1}, "timeout_ms: it must be 900000 or less"),
        ({"secrets": ["a", "b", "c"]}, "secrets: there are 3 secrets, more than 2"),
        ({"secrets": ["a", "a"]}, "secrets: a secret is listed twice"),
        ({"secrets": ["a/b"]}, "the name of a secret has"),
        ({"secrets": "a"}, "secrets: it must be a list"),
        ({"envelope": "xml"}, "envelope: it must be 'none' or 'cloudevents'"),
        ({"secret": ["a"]}, 'there is no field "secret": did you mean "secrets"?'),
    ],
)
def test_a_bad_value_says_why(given: dict[str, Any], said: str) -> None:
    assert said in error(**given)


def test_topic_and_url_are_needed_and_every_error_is_named() -> None:
    with pytest.raises(Invalid) as raised:
        parse_push('{"concurrency": 0, "timeout": 5}')
    assert [line.partition(":")[0] for line in raised.value.message.splitlines()] == [
        "topic", "url", "concurrency", 'there is no field "timeout"'
    ]  # fmt: skip


def test_settings_check_targets_by_their_keys() -> None:
    value = json.dumps({"topic": "orders", "url": URL})
    made = Settings("shop").changed({"push.orders": value}, ())
    assert made.entries == {"push.orders": value}
    for key, text, said in (
        ("push.orders", "{}", "push.orders: topic: it is missing"),
        ("push.orders", "https://h", "push.orders: not JSON"),
        ("push.orders*", value, "the name of a push target does not end in *"),
        ("push.", value, "a name has 1 to"),
    ):
        with pytest.raises(Invalid) as raised:
            Settings("shop").changed({key: text}, ())
        assert said in raised.value.message
    assert Settings("shop").changed({"Push.orders": value}, ()).warnings({"Push.orders"}) == [
        "Push.orders: foqs does not read this key: did you mean push.orders?"
    ]
