"""Verdicts: each rule finds its state of the hosts and no other one, and the page for operators has each rule."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from foqs.doctor.system import Facts
from foqs.doctor.verdict import (
    CERTIFICATE_MS,
    FULL,
    IN_USE_MS,
    LATE_TIMERS,
    OLD_MS,
    RULES,
    SLOW_MS,
    Reason,
    Verdict,
    Word,
    judge,
)
from foqs.figures import HostStatus, QuotaStatus, RateStatus, ShardStatus, TopicStatus

PAGE = Path(__file__).parents[2] / "docs/reference/status.md"
NOW_MS = 1_800_000_000_000
GOOD_SHARD = ShardStatus(1, "serving", "mysql://db:3306/foqs_1")
GOOD = HostStatus("a:7707", "a", "1.0", NOW_MS, session="connected", controller="a", budget_limit_bytes=100,
                  shards=(GOOD_SHARD,))  # fmt: skip
MAIL = TopicStatus("shop", "mail", 7, NOW_MS - 1_000, NOW_MS - 1_000, consumed=True)
QUOTA = QuotaStatus("shop", "", 10, 100)


def with_shard(**changes: Any) -> HostStatus:
    return GOOD._replace(shards=(GOOD_SHARD._replace(**changes), ShardStatus(2, "serving")))


def with_topic(**changes: Any) -> HostStatus:
    return GOOD._replace(topics=(MAIL._replace(**changes),))


def with_quota(**changes: Any) -> HostStatus:
    return GOOD._replace(quotas=(QUOTA._replace(**changes),))


def facts(*hosts: HostStatus, missing: tuple[str, ...] = (), errors: tuple[str, ...] = ()) -> Facts:
    return Facts(hosts, missing, errors)


OTHER = HostStatus(
    "b:7707", "b", "1.0", NOW_MS, session="connected", controller="a", shards=(ShardStatus(3, "serving"),)
)
FOUND: dict[str, tuple[Facts, str, str]] = {
    "no_answer": (facts(errors=("a:1: refused",)), "a:1: refused", "foqs doctor"),
    "nothing_served": (facts(GOOD._replace(shards=(), unserved=(1,))), "no shard takes items", "foqs doctor"),
    "host_silent": (facts(GOOD, missing=("b:7707",)), "host b:7707 did not answer", "restart it"),
    "host_gone": (facts(GOOD._replace(gone=("b at b:7707",))), "host b at b:7707 ended", "start it again"),
    "host_not_ready": (facts(GOOD._replace(missing=("stopping",))), "host a is not ready: stopping", "wait if"),
    "shard_unserved": (facts(GOOD._replace(unserved=(4, 5))), "no host serves shards 4, 5", "foqs cluster status"),
    "shard_unreachable": (facts(with_shard(trouble="unreachable")), "shard 1 on a (mysql://db:3306): the", "start or"),
    "shard_denied": (facts(with_shard(trouble="denied")), "the database server answers, but", "do not restart"),
    "call_hangs": (facts(with_shard(trouble="hanging", waiting_ms=65_000)), "no answer for 1m", "locks"),
    "shard_read_only": (facts(with_shard(trouble="read_only")), "read-only", "the primary"),
    "shard_cut_off": (facts(with_shard(trouble="cut_off")), "another host can", "repair the network"),
    "breaker_open": (facts(with_shard(trouble="breaker_open")), "circuit breaker", "shard.failed"),
    "shard_slow": (
        facts(with_shard(transaction_ms=SLOW_MS, busy=0.95)),
        "shard 1 on a (mysql://db:3306): the database is slow: a transaction took 200 ms on average in the last half "
        "minute, and calls were open for 95% of it",
        "locks",
    ),
    "disk_full": (facts(with_shard(free_bytes=5 << 20)), "only 5 MiB", "free space"),
    "clock_in_doubt": (facts(GOOD._replace(clock="two clocks differ")), "two clocks differ", "host.clock_wait_ms"),
    "zookeeper_lost": (facts(GOOD._replace(session="suspended")), "a (suspended)", "repair ZooKeeper"),
    "zookeeper_data": (
        facts(GOOD._replace(held="lost"), OTHER._replace(held="merge")), "a, b wait", "foqs cluster import"
    ),
    "certificate_ends": (
        facts(GOOD._replace(certificate_ends_at_ms=NOW_MS + CERTIFICATE_MS)), "host a ends in 14d", "SIGHUP"
    ),
    "no_controller": (facts(GOOD._replace(controller="")), "no host is the controller", "ACLs"),
    "budget_full": (facts(GOOD._replace(budget_used_bytes=95)), "host a uses 95%", "host.budget_bytes"),
    "loop_late": (facts(GOOD._replace(loop_late=LATE_TIMERS, loop_lag_ms=400)), "by up to 400 ms", "add hosts"),
    "quota_full": (facts(with_quota(used=100)), "namespace shop: 100 of 100", "[quotas]"),
    "handlers_hang": (facts(GOOD._replace(hung=2)), "2 handlers hang", "foqs consumers"),
    "not_consumed": (facts(with_topic(consumed=False)), "no worker asks for", "foqs explain mail --ns shop"),
    "item_old": (
        facts(with_topic(oldest_ready_at_ms=NOW_MS - 2 * OLD_MS)), "ready for 2h", "foqs explain mail --ns shop"
    ),
    "versions_differ": (facts(GOOD, OTHER._replace(version="1.1")), "1.0 on a, 1.1 on b", "complete the upgrade"),
    "settings_differ": (
        facts(GOOD._replace(alike={"quotas": "1", "limits": "1"}), OTHER._replace(alike={"quotas": "2"})),
        "[quotas] of foqs.toml is not the same on all hosts: a | b",
        "the same [quotas]",
    ),
    "quota_nearly_full": (facts(with_quota(used=int(FULL * 100))), "90 of 100", "raise"),
    "topic_paused": (facts(with_topic(paused=True)), "paused: 7 items wait", "foqs topic resume mail --ns shop"),
    "attempts_fail": (
        facts(with_topic(failed_10_minutes=50, acked_10_minutes=50)),
        "topic shop/mail: 50 of 100 attempts of the last 10 minutes failed", "foqs failing mail --ns shop",
    ),
    "dead_letters": (facts(with_topic(dead=True)), "has dead letters: 7", "foqs dead list mail --ns shop"),
}  # fmt: skip
NOT_FOUND: dict[str, list[Facts]] = {
    "certificate_ends": [facts(GOOD._replace(certificate_ends_at_ms=NOW_MS + CERTIFICATE_MS + 1))],
    "no_answer": [facts(HostStatus("old:1"))],
    "nothing_served": [facts(OTHER, missing=("a:1",)), facts(GOOD, HostStatus("old:1"))],
    "host_gone": [facts(GOOD._replace(gone=("b at b:7707",)), OTHER)],
    "shard_unserved": [
        facts(GOOD._replace(unserved=(1,))),  # it is served by now
        facts(GOOD, OTHER._replace(session="expired", unserved=(9,))),  # an old view
        facts(with_shard(trouble="unreachable", state="opening")._replace(unserved=(1,))),  # which is worse
    ],
    "disk_full": [facts(with_shard(free_bytes=5 << 30)), facts(with_shard(free_bytes=None))],
    "shard_slow": [
        facts(with_shard(transaction_ms=SLOW_MS - 1)),
        facts(with_shard(transaction_ms=SLOW_MS, trouble="hanging")),  # which is worse
    ],
    "settings_differ": [
        facts(GOOD._replace(alike={"quotas": "1"}), OTHER._replace(alike={"quotas": "1"})),
        facts(GOOD._replace(alike={"quotas": "1"}), OTHER),  # of an older version
    ],
    "zookeeper_lost": [facts(GOOD._replace(session=""))],
    "no_controller": [facts(GOOD._replace(session="", controller="")), facts(GOOD, OTHER._replace(controller=""))],
    "budget_full": [facts(GOOD._replace(budget_used_bytes=89))],
    "loop_late": [facts(GOOD._replace(loop_late=LATE_TIMERS - 1))],
    "quota_full": [facts(with_quota(used=99))],
    "quota_nearly_full": [facts(with_quota(used=89)), facts(with_quota(used=100))],
    "not_consumed": [
        facts(with_topic(consumed=False, paused=True)),
        facts(with_topic(consumed=False, dead=True)),
        facts(with_topic(consumed=False, newest_ready_at_ms=NOW_MS - IN_USE_MS - 1)),
        facts(with_topic(consumed=False), OTHER._replace(topics=(MAIL._replace(ready=0),))),  # another host has them
    ],
    "item_old": [
        facts(with_topic(oldest_ready_at_ms=NOW_MS - OLD_MS)),
        facts(with_topic(oldest_ready_at_ms=1, paused=True)),
        facts(with_topic(oldest_ready_at_ms=1, dead=True)),
    ],
    "attempts_fail": [
        facts(with_topic(failed_10_minutes=19)),
        facts(with_topic(failed_10_minutes=49, acked_10_minutes=50)),
        facts(with_topic(failed_10_minutes=30), OTHER._replace(topics=(MAIL._replace(acked_10_minutes=31),))),
    ],
    "topic_paused": [facts(with_topic(paused=True, ready=0))],
    "versions_differ": [facts(GOOD, OTHER)],
}


ONE: dict[str, tuple[Facts, str]] = {
    "quota_full": (facts(with_quota(used=1, most=1)), "1 of 1 item is stored"),
    "handlers_hang": (facts(GOOD._replace(hung=1)), "1 handler hangs"),
    "not_consumed": (facts(with_topic(consumed=False, ready=1)), "1 item is ready"),
    "topic_paused": (facts(with_topic(paused=True, ready=1)), "is paused: 1 item waits"),
    "dead_letters": (facts(with_topic(dead=True, ready=1)), "has dead letters: 1 item"),
}


FAILS = TopicStatus("shop", "mail", failed_10_minutes=300, acked_10_minutes=50, failure="SMTP 451")


def of(code: str, verdict: Verdict) -> list[Reason]:
    return [reason for reason in verdict.reasons if reason.code == code]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.code))
def test_a_rule_finds_its_state(rule: Any) -> None:
    found, text, remedy = FOUND[rule.code]
    verdict = judge(found)
    (reason,) = of(rule.code, verdict)
    assert text in reason.text and remedy in reason.remedy, reason
    assert reason.level is rule.level
    assert verdict.word.exit_status >= rule.level.exit_status


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.code))
def test_a_rule_finds_nothing_else(rule: Any) -> None:
    for other in [facts(GOOD, OTHER), facts(with_topic()), facts(with_quota()), *NOT_FOUND.get(rule.code, ())]:
        assert of(rule.code, judge(other)) == []


@pytest.mark.parametrize("code", ONE)
def test_one_thing_has_no_plural(code: str) -> None:
    found, text = ONE[code]
    (reason,) = of(code, judge(found))
    assert reason.text.endswith(text)


def test_each_rule_is_tested() -> None:
    codes = [rule.code for rule in RULES]
    assert len(set(codes)) == len(codes)
    assert FOUND.keys() == set(codes) >= NOT_FOUND.keys()


def test_a_good_cluster_has_no_reason() -> None:
    assert judge(facts(GOOD, OTHER)) == Verdict(Word.HEALTHY, ())


def test_the_worst_comes_first_and_gives_the_word() -> None:
    paused = TopicStatus("shop", "old", 1, paused=True)
    verdict = judge(facts(GOOD._replace(topics=(paused,), hung=1, shards=(GOOD_SHARD._replace(trouble="hanging"),))))
    assert verdict.word is Word.DOWN
    assert [reason.code for reason in verdict.reasons] == [
        "nothing_served", "call_hangs", "handlers_hang", "topic_paused"
    ]  # fmt: skip


def test_a_note_leaves_the_word() -> None:
    assert judge(facts(with_topic(paused=True))).word is Word.HEALTHY
    assert [word.exit_status for word in Word] == [0, 1, 2]


def test_a_topic_without_workers_stays_a_reason() -> None:
    for waits_ms in range(0, 4 * OLD_MS, 60_000):
        since_ms = NOW_MS - waits_ms
        topic = with_topic(consumed=False, newest_ready_at_ms=since_ms, oldest_ready_at_ms=since_ms)
        assert {one.code for one in judge(facts(topic)).reasons} & {"not_consumed", "item_old"}, waits_ms


def test_hosts_are_added_up() -> None:
    """A consumer may wait at another host, and each host counts its own items."""
    here, there = with_topic(consumed=False), OTHER._replace(topics=(MAIL._replace(ready=3),))
    assert of("not_consumed", judge(facts(here, there))) == []
    two = facts(with_quota(used=50), OTHER._replace(quotas=(QUOTA._replace(used=50),)))
    assert [reason.code for reason in judge(two).reasons] == ["quota_full"]


def test_refusals_of_a_rate_are_a_reason_of_their_own() -> None:
    (reason,) = judge(facts(GOOD._replace(quota_refused=12))).reasons
    assert reason.text == "quotas of namespaces refused 12 items in the last half minute"
    (reason,) = judge(facts(with_quota()._replace(quota_refused=12))).reasons
    assert reason.text.endswith("; the fullest is the quota of namespace shop (10 of 100 items stored)"), "which one"
    (reason,) = judge(facts(GOOD._replace(quota_refused=1))).reasons
    assert "refused 1 item in" in reason.text
    (reason,) = judge(facts(with_quota(used=100)._replace(quota_refused=12))).reasons
    assert "100 of 100" in reason.text


def test_clients_of_different_versions_are_a_note() -> None:
    one, two = GOOD._replace(clients=("foqs-python/0.1.0",)), OTHER._replace(clients=("foqs-python/0.1.0", "go/2"))
    assert judge(facts(one)).reasons == ()
    (reason,) = judge(facts(one, two)).reasons
    assert (reason.code, reason.level) == ("versions_differ", Word.HEALTHY)
    assert reason.text == "consumers use the clients foqs-python/0.1.0, go/2"


def test_lists_are_bounded() -> None:
    topics = tuple([MAIL._replace(topic=f"t{n}", paused=True) for n in range(40)])
    reasons = judge(facts(GOOD._replace(topics=topics))).reasons
    assert len(reasons) == 6 and reasons[-1].text.startswith("35 or more further topics")
    unserved = judge(facts(GOOD._replace(unserved=tuple(range(2, 102))))).reasons[0].text
    assert "and 80 more" in unserved and len(unserved) < 200


def test_failed_attempts_of_all_hosts_are_added() -> None:
    """A topic without items may fail: it drains as quickly as it fills."""
    (reason,) = judge(facts(GOOD._replace(topics=(FAILS,)), OTHER._replace(topics=(FAILS,)))).reasons
    assert reason.text == "topic shop/mail: 600 of 700 attempts of the last 10 minutes failed, most with SMTP 451"
    assert (reason.ns, reason.topic, reason.level) == ("shop", "mail", Word.DEGRADED)


def test_a_bounded_number_of_failing_topics_is_named() -> None:
    topics = tuple([FAILS._replace(topic=f"t{n}", failed_10_minutes=100 + n) for n in range(20)])
    reasons = judge(facts(GOOD._replace(topics=topics))).reasons
    assert [one.topic for one in reasons] == ["t19", "t18", "t17", "t16", "t15", ""]
    assert reasons[-1].text == "15 or more further topics have attempts that fail"


def test_reasons_about_a_topic_name_it() -> None:
    for changes in ({"consumed": False}, {"oldest_ready_at_ms": 1}, {"paused": True}, {"dead": True}):
        (reason,) = judge(facts(with_topic(**changes))).reasons
        assert (reason.ns, reason.topic) == ("shop", "mail")


def test_names_that_a_shell_or_a_terminal_would_read_otherwise() -> None:
    (reason,) = of("not_consumed", judge(facts(with_topic(topic="a b;\x1b[31m", consumed=False))))
    assert "\x1b" not in reason.text + reason.remedy and "'a b;" in reason.remedy


def test_the_page_has_each_rule() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (DOWN|DEGRADED|note) \| ([^|]*) \| ([^|]*) \|$", PAGE.read_text(), re.M)
    wanted = [
        (rule.code, "note" if rule.level is Word.HEALTHY else rule.level.value, rule.meaning, rule.remedy)
        for rule in RULES
    ]
    assert rows == wanted


def test_hosts_share_the_rate_of_a_namespace() -> None:
    one = GOOD._replace(rates=(RateStatus("shop", 200.0, 500.0), RateStatus("mail", 1.0, 5.0)))
    other = OTHER._replace(rates=(RateStatus("shop", 280.0, 500.0),))
    assert facts(one, other).rates == [RateStatus("shop", 480.0, 500.0), RateStatus("mail", 1.0, 5.0)]
