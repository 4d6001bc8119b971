"""Signatures by Standard Webhooks, and the secrets that make them."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.errors import Invalid
from foqs.push.signing import LEAST_BYTES, MOST_BYTES, Secrets, key_of, names_of, signature
from foqs.push.target import Target

pytestmark = pytest.mark.memory

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
"""Of the example that the specification publishes, as the next ones."""
MESSAGE, AT_S, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
OTHER = b64encode(bytes(range(32))).decode()


def target(**fields: object) -> Target:
    return Target("hook", "shop", "mail", "https://example.org/", **fields)  # type: ignore[arg-type]


def test_the_published_example() -> None:
    assert signature([key_of(SECRET)], MESSAGE, AT_S, BODY) == SIGNATURE


def test_each_key_of_a_rotation_signs() -> None:
    both = signature([key_of(OTHER), key_of(SECRET)], MESSAGE, AT_S, BODY).split(" ")
    assert both == [signature([key_of(OTHER)], MESSAGE, AT_S, BODY), SIGNATURE]


@given(st.binary(min_size=LEAST_BYTES, max_size=MOST_BYTES), st.binary())
def test_a_receiver_finds_the_same(key: bytes, body: bytes) -> None:
    made = signature([key], "7", 12, body).removeprefix("v1,")
    assert b64decode(made) == hmac.new(key, b"7.12." + body, "sha256").digest()


@given(st.binary(min_size=LEAST_BYTES, max_size=MOST_BYTES))
def test_a_key_is_base64_with_a_prefix_or_without(key: bytes) -> None:
    text = b64encode(key).decode()
    assert key_of(text) == key_of(f"whsec_{text}\n") == key


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "0 bytes"),
        (b64encode(bytes(23)).decode(), "23 bytes"),
        (b64encode(bytes(65)).decode(), "65 bytes"),
        ("whsec_ not base64 at all, is it", "not base64"),
        ("whsk_" + OTHER, "not base64"),
        (OTHER[:-1], "not base64"),
        ("schlüssel" * 5, "not base64"),
    ],
)
def test_a_wrong_key_is_refused_without_its_text(text: str, why: str) -> None:
    with pytest.raises(Invalid, match=why) as raised:
        key_of(text)
    assert not text or text not in str(raised.value)


def test_the_keys_of_a_target() -> None:
    secrets = Secrets({"new": SECRET, "old": OTHER + "\n", "word": "not a key"})
    assert secrets.keys(target(secrets=("new", "old"))) == [key_of(SECRET), key_of(OTHER)]
    assert secrets.keys(target()) == []
    with pytest.raises(Invalid, match="this process has no secret next"):
        secrets.keys(target(secrets=("next",)))
    with pytest.raises(Invalid, match="the secret word: it is not base64"):
        secrets.check(target(secrets=("word",)))


def test_headers_are_filled() -> None:
    secrets = Secrets({"a": "one\n", "b": "two", "lines": "1\n2", "umlaut": "ü"})
    assert secrets.filled("Basic {secret:a}:{secret:b} {x}") == "Basic one:two {x}"
    assert secrets.filled("plain") == "plain"
    for name in ("lines", "umlaut"):
        with pytest.raises(Invalid, match=f"the secret {name} is not one line of printable ASCII"):
            secrets.filled(f"{{secret:{name}}}")
    with pytest.raises(Invalid, match="this process has no secret c"):
        secrets.check(target(headers={"x": "{secret:c}"}))


def test_a_target_gets_its_own_secrets_alone() -> None:
    secrets = Secrets({"a": SECRET, "b": OTHER, "c": "text"})
    mine = target(secrets=("a",), headers={"x": "{secret:c}{secret:a}", "y": "{secret:none}"})
    assert names_of(mine) == ["a", "c", "none"]
    assert secrets.of(mine) == Secrets({"a": SECRET, "c": "text"})


def test_a_repr_shows_no_secret() -> None:
    assert repr(Secrets({"b": SECRET, "a": OTHER})) == "Secrets(['a', 'b'])"
