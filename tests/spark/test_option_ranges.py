"""Every number among the options of readers and writers has bounds, and its errors name the option."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.errors import Invalid
from foqs.spark.options import ConsumeOptions, Options, WriteOptions
from foqs.spark.snapshot_shards import SnapshotOptions

GIVEN: dict[type[Options], dict[str, str]] = {
    WriteOptions: {"endpoints": "h:1", "namespace": "n"},
    ConsumeOptions: {"endpoints": "h:1", "namespace": "n", "topic": "t", "stateDir": "/s"},
    SnapshotOptions: {"shards": "sqlite:///x"},
}
NUMBERS = [
    (kind, field.alias or name, "float" in str(field.annotation))
    for kind in GIVEN
    for name, field in kind.model_fields.items()
    if "int" in str(field.annotation) or "float" in str(field.annotation)
]


def refusal(kind: type[Options], **given: Any) -> str:
    with pytest.raises(Invalid) as caught:
        kind.parse({**GIVEN[kind], **given})
    return caught.value.message


def test_the_options_that_are_needed_are_enough() -> None:
    for kind, given in GIVEN.items():
        kind.parse(given)
    assert len(NUMBERS) > 10


@pytest.mark.parametrize(("kind", "name", "fraction"), NUMBERS)
def test_a_number_out_of_range_is_refused_by_its_name(kind: type[Options], name: str, fraction: bool) -> None:
    for value in ("-1", "many", "", "true", "nan", "inf", "1e30", str(10**30), *(["1.5"] if not fraction else [])):
        assert f"option {name}: " in refusal(kind, **{name: value}), value


@pytest.mark.parametrize("kind", [WriteOptions, ConsumeOptions])
def test_addresses_are_checked(kind: type[Options]) -> None:
    for value in ("", ",", "h:0", "h:65536", "http://h:1"):
        assert "option endpoints: " in refusal(kind, endpoints=value), value


@pytest.mark.parametrize("kind", [WriteOptions, ConsumeOptions])
def test_what_no_client_takes_is_refused_before_tasks_begin(kind: type[Options]) -> None:
    assert refusal(kind, token="") == "option token: it is empty: give a value, or leave the option out"
    for value in ("", "off", "on,", "file=x"):
        assert refusal(kind, tls=value).startswith("option tls: neither `on` nor a list of ca_file=..."), value
    for value in ("on", "ca_file=x"):
        assert kind.parse({**GIVEN[kind], "tls": value, "token": "t"})


def test_topics_are_given_once() -> None:
    for value in ("", ",", "a,b,a"):
        assert "option topic: " in refusal(ConsumeOptions, topic=value), value


def test_a_rate_of_0_is_no_limit() -> None:
    assert WriteOptions.parse({**GIVEN[WriteOptions], "maxRowsPerSecond": "0"}).rows_per_second is None
    assert "needs the option tasks" in refusal(WriteOptions, maxRowsPerSecond="5")
