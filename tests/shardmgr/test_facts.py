"""Records of ZooKeeper: a written record can be read again, and an unreadable one is Invalid."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.errors import PROTOCOL_VERSION, Invalid
from foqs.ids import MAX_SHARD
from foqs.shardmgr import facts
from foqs.shardmgr.facts import HostFact, OwnerFact, ShardFact, ShardUse

NAMES = st.text(min_size=1, max_size=20)
SHARDS = st.integers(1, MAX_SHARD)
WEIGHTS = st.floats(0.001, 1000)


@given(st.builds(ShardFact, SHARDS, NAMES, WEIGHTS, st.sampled_from(ShardUse)))
def test_a_shard_is_read_as_it_was_written(fact: ShardFact) -> None:
    assert facts.decode_shard(fact.id, facts.encode_shard(fact)) == fact


@given(st.builds(HostFact, NAMES, NAMES, NAMES, st.booleans(), protocol=st.integers(1, 9)))
def test_a_host_is_read_as_it_was_written(fact: HostFact) -> None:
    assert facts.decode_host(fact.id, facts.encode_host(fact)) == fact


@given(st.builds(OwnerFact, SHARDS, NAMES, NAMES, st.integers(1, 1 << 60)))
def test_an_owner_is_read_as_it_was_written(fact: OwnerFact) -> None:
    assert facts.decode_owner(fact.shard, facts.encode_owner(fact)) == fact


@given(st.dictionaries(SHARDS, NAMES), st.integers(-1, 1000))
def test_an_assignment_is_read_as_it_was_written(hosts: dict[int, str], version: int) -> None:
    read = facts.decode_assignment(facts.encode_assignment(hosts), version)
    assert (read.version, dict(read.hosts)) == (version, hosts)


def test_ten_thousand_shards_on_a_thousand_hosts_fit_a_znode() -> None:
    hosts = {shard: f"host-{shard % 1000:04}.foqs.default.svc.cluster.local" for shard in range(1, 10_001)}
    assert len(facts.encode_assignment(hosts)) < 1 << 20


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"1", b'{"hosts":1}', b'{"hosts":{"a":1}}', b'{"hosts":{"a":["1"]}}', b'{"hosts":{"a":[0]}}',
     b'{"hosts":{"a":[1],"b":[1]}}', b'{"hosts":{"a":[true]}}', b"\xff"],
)  # fmt: skip
def test_a_broken_assignment_is_invalid(data: bytes) -> None:
    with pytest.raises(Invalid):
        facts.decode_assignment(data, 0)


@pytest.mark.parametrize(
    "data",
    [b"{}", b'{"url":""}', b'{"url":1}', b'{"url":"u","weight":0}', b'{"url":"u","weight":"1"}',
     b'{"url":"u","weight":true}', b'{"url":"u","use":"sometimes"}', b'{"url":"u","weight":NaN}'],
)  # fmt: skip
def test_a_broken_shard_is_invalid(data: bytes) -> None:
    with pytest.raises(Invalid):
        facts.decode_shard(1, data)


def test_what_a_newer_version_added_is_ignored() -> None:
    assert facts.decode_shard(1, b'{"url":"u","colour":"red"}') == ShardFact(1, "u")
    newer = facts.decode_host("h", b'{"address":"a","run":"r","protocol":9,"colour":"red"}')
    assert newer == HostFact("h", "a", "r", protocol=9)


def test_a_record_without_a_protocol_version_has_version_0() -> None:
    assert facts.decode_host("h", b'{"address":"a","run":"r","leaving":false}').protocol == 0
    for wrong in (b'"2"', b"true", b"2.5", b"NaN"):
        with pytest.raises(Invalid, match="protocol must be"):
            facts.decode_host("h", b'{"address":"a","run":"r","protocol":%b}' % wrong)


@pytest.mark.parametrize(
    ("version", "remedy"),
    [(PROTOCOL_VERSION + 1, "upgrade foqs on this host"), (0, "upgrade foqs on host b (b:7707), or stop that host")],
)
def test_a_living_host_of_another_protocol_version(version: int, remedy: str) -> None:
    same = HostFact("a", "a:7707", "run")
    hosts = {"a": same, "b": HostFact("b", "b:7707", "run", protocol=version)}
    assert facts.other_protocol(facts.Facts(hosts={"a": same}), "c") is None
    assert facts.other_protocol(facts.Facts(hosts=hosts), "b") is None, "the record of its own last run"
    found = facts.other_protocol(facts.Facts(hosts=hosts), "c")
    assert found is not None
    versions = f"has protocol version {version} of foqs, and this host has version {PROTOCOL_VERSION}"
    assert facts.protocol_error(found).message == f"host b (b:7707) {versions}: {remedy}"


def test_a_url_is_not_shown() -> None:
    assert "secret" not in repr(ShardFact(1, "mysql://u:secret@h/d"))


def test_texts_that_cannot_be_sent_are_refused() -> None:
    """JSON can hold them; in a routing they would break the answers to all clients."""
    bad = "\\udcff"
    for decode, record in (
        (partial(facts.decode_host, "h"), f'{{"address": "{bad}", "run": "r"}}'),
        (partial(facts.decode_owner, 1), f'{{"host": "{bad}", "address": "a:1", "epoch": 1}}'),
        (partial(facts.decode_shard, 1), f'{{"url": "{bad}"}}'),
        (partial(facts.decode_assignment, version=1), f'{{"hosts": {{"{bad}": [1]}}}}'),
    ):
        with pytest.raises(Invalid, match="not UTF-8"):
            decode(record.encode())
