"""Reasons that differ in numbers, quotations, hexadecimal digits or UUIDs alone are of one group."""

from __future__ import annotations

import random
import re
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.policies.failures import _VARIABLE, fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SMTP 451 from 10.0.0.7", "SMTP 451 from 10.0.0.12"),
        ("order 9 has no row", "order 123456 has no row"),
        ("at 0xdeadbeef", "at 0x1"),
        ("commit 7f3a9c1 is lost", "commit 00bb12 is lost"),
        ("no user 6b1f7a52-9d1e-4c58-8f0a-0123456789ab", "no user AAAAAAAA-9d1e-4c58-8f0a-0123456789ab"),
        ("""unknown field "a" in `x`""", """unknown field "bc" in `yy`"""),
        ("KeyError: 'name'", "KeyError: 'city'"),
    ],
)
def test_reasons_of_one_group(one: str, other: str) -> None:
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("connection refused", "connection reset"),
        ("KeyError: 'name'", "ValueError: 'name'"),
        ("can't open the file, won't retry", "can't reach the host, won't retry"),
        ("facade", "decade"),
        ("5", "'5'"),
    ],
)
def test_reasons_of_two_groups(one: str, other: str) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_a_fingerprint_never_changes() -> None:
    """It is stored: items that died before an upgrade stay in their group."""
    assert fingerprint("SMTP 451 from 10.0.0.7") == -3049984322913530749
    assert fingerprint("") == 0


@given(st.text())
def test_every_text_has_a_fingerprint_of_64_bits(reason: str) -> None:
    assert -(1 << 63) <= fingerprint(reason) < 1 << 63


@given(st.text(alphabet=st.characters(categories=["Cs", "Ll"]), min_size=1))
def test_texts_that_are_not_utf_8_have_one(reason: str) -> None:
    assert fingerprint(reason)


STORED = re.compile(
    r"""(?P<uuid>[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})
      | (?P<quoted>"[^"]*" | (?<!\w)'[^']*' | `[^`]*`)
      | (?P<number>0x[0-9a-f]+ | \b(?=[a-f]*[0-9])[0-9a-f]{6,}\b | [0-9]+)""",
    re.IGNORECASE | re.VERBOSE,
)
"""The pattern of stored fingerprints."""


@pytest.mark.parametrize("seed", range(5))
def test_stored_fingerprints_stay_the_same(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(5_000):
        reason = "".join(dice.choices("abcfxXF09é'\"`- zKſ\n", k=dice.randrange(30)))
        if dice.random() < 0.3:
            reason += dice.choice(
                [f"{dice.getrandbits(40):x}", f" {UUID(int=dice.getrandbits(128))}", " DEADBEEF1 0XF"]
            )
        assert _VARIABLE.sub(_placed, reason) == STORED.sub(_placed, reason), reason


def _placed(found: re.Match[str]) -> str:
    return f"<{found.lastgroup}>"
