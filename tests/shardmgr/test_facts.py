"""Records of ZooKeeper: a written record can be read again, and an unreadable one is Invalid."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.errors import Invalid
from foqs.ids import MAX_SHARD
from foqs.shardmgr import facts
from foqs.shardmgr.facts import HostFact, OwnerFact, ShardFact, ShardUse

NAMES = st.text(min_size=1, max_size=20)
SHARDS = st.integers(1, MAX_SHARD)
WEIGHTS = st.floats(0.001, 1000)


@given(st.builds(ShardFact, SHARDS, NAMES, WEIGHTS, st.sampled_from(ShardUse)))
def test_a_shard_is_read_as_it_was_written(fact: ShardFact) -> None:
    assert facts.decode_shard(fact.id, facts.encode_shard(fact)) == fact


@given(st.builds(HostFact, NAMES, NAMES, NAMES, st.booleans(), knows=st.integers(1, 9)))
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
    newer = facts.decode_host("h", b'{"address":"a","run":"r","knows":2,"colour":"red"}')
    assert newer == HostFact("h", "a", "r", knows=2)


def test_a_record_that_says_nothing_about_it_is_of_an_older_host() -> None:
    assert facts.decode_host("h", b'{"address":"a","run":"r","leaving":false}').knows == 1 < facts.KNOWS
    for wrong in (b'"2"', b"true", b"2.5", b"NaN"):
        with pytest.raises(Invalid, match="knows is no"):
            facts.decode_host("h", b'{"address":"a","run":"r","knows":%b}' % wrong)


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
