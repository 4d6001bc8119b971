"""Tokens are conserved whatever hosts come, go or freeze and whatever messages are lost, late or overtaken; and hosts
that have enough to do use nearly all of the rate."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise

import pytest

from foqs.bounds import Quota
from foqs.limits.allowance import Allowance, Lost
from foqs.limits.bucket import TTL_MS, Ask, Grant, QuotaTokens, ThrottleTokens

ANSWER_MS = 1_000


@dataclass
class Sent:
    """A message under way: to the home, or back with its `grant`."""

    holder: str
    ask: Ask
    grant: Grant | None = None


@dataclass
class Spent:
    at_ms: int
    taken: int
    allowance: Allowance
    term: int
    stored: int


@dataclass
class Host:
    name: str
    allowance: Allowance
    numbers: Iterator[int]
    asked_ms: int = 0
    open: list[Spent] = field(default_factory=list)
    since_asked: list[Spent] = field(default_factory=list)  # one token each, spent for good


def new_host(name: str, now_ms: int) -> Host:
    numbers = count(1)
    return Host(name, Allowance(now_ms, numbers), numbers)


def worst(spent: list[Spent], quota: Quota, since_ms: int) -> float:
    """Return the most tokens that hosts spent beyond the rate, in any stretch of time since then."""
    assert quota.per_second is not None
    debt, most, last_ms = 0.0, 0.0, since_ms
    for one in spent:
        debt = max(0.0, debt - quota.per_second * (one.at_ms - last_ms) / 1_000) + one.stored
        most, last_ms = max(most, debt), one.at_ms
    return most


class Tokens:
    """One home at a time, as its shard has one owner; it moves to a new one that knows nothing. Hosts are greedy, and
    time passes in steps at which tokens end."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.now = 0
        self.names = 0
        self.hosts: list[Host] = []
        self.under_way: list[Sent] = []
        self.spent: list[Spent] = []
        self.quota = self.any_quota()
        self.since_ms, self.most = 0, self.quota.burst  # of the quota, and the tokens beyond its rate
        self.ends = rng.random() < 0.5  # tokens often end by time
        self.moved()
        for _ in range(rng.randrange(1, 4)):
            self.comes()
        self.time_passes(4_000)
        steps = [
            (4, self.time_passes), (rng.choice([0, 0, 0.3]), self.moved), (0.1, self.comes), (0.1, self.dies),
            (6, self.asks), (rng.choice([8, 12]), self.delivered), (rng.choice([0, 0, 0.3]), self.updates),
        ]  # fmt: skip
        if rng.random() < 0.5:
            steps += [(3, self.enqueues), (2, self.settles)]
        else:
            steps += [(3, self.delivers), (2, self.gives_back)]
        weights = [weight for weight, _ in steps]
        self.script = rng.choices([step for _, step in steps], weights, k=100)

    def run(self) -> None:
        for step in self.script:
            step()
            assert all(host.allowance.balance >= 0 and host.allowance.pending >= 0 for host in self.hosts)
        self.check()

    def any_quota(self) -> Quota:
        return Quota(self.rng.choice([0.7, 2.5, 10, 100, 1_000]), self.rng.choice([1, 50, 200]), None)

    def check(self) -> None:
        """Hosts spent no more than the quota allows since it came into force."""
        assert worst(self.spent, self.quota, self.since_ms) <= self.most + 1e-6

    def updates(self) -> None:
        """What hosts hold stays good for them: a smaller burst holds when they have spent it."""
        self.check()
        self.quota = self.any_quota()
        self.home.follow(self.quota, self.now)
        self.since_ms, self.most = self.now, max(self.quota.burst, self.home._bucket.out)
        self.spent.clear()

    def time_passes(self, ms: int | None = None) -> None:
        steps = [1, 5, 250, 500, ANSWER_MS - 1, TTL_MS - 1]
        if self.ends:
            steps = [1, 5, 100, 500, TTL_MS // 2, TTL_MS - 1, TTL_MS, TTL_MS + 1]
        self.now += self.rng.choice(steps) if ms is None else ms

    def moved(self) -> None:
        """Questions to the old home may reach the new one, because hosts know both by the same name."""
        self.since = self.now
        self.home = QuotaTokens(self.quota, self.now + TTL_MS)

    def comes(self) -> None:
        self.names += 1
        self.hosts.append(new_host(str(self.names), self.now))

    def dies(self) -> None:
        if len(self.hosts) > 1:
            self.hosts.remove(self.rng.choice(self.hosts))

    def asks(self) -> None:
        rng, host = self.rng, self.rng.choice(self.hosts)
        allowance = host.allowance
        allowance.beat(self.now)
        if allowance.asked is not None:
            if self.now - host.asked_ms < ANSWER_MS:
                return
            allowance.answered(allowance.asked[0].number, None, self.now)
        elif allowance.idle():  # the host forgets it and makes a new one
            allowance = host.allowance = Allowance(self.now, host.numbers)
        host.asked_ms = self.now
        host.since_asked.clear()
        need = rng.choice([0, 1, self.quota.burst // 2, self.quota.burst])
        ask = allowance.ask(need, self.now, ahead=rng.random() < 0.5, spare=rng.random() < 0.5)
        self.under_way.append(Sent(host.name, ask))

    def delivered(self) -> None:
        """To the home, or back; most in order."""
        rng = self.rng
        if not self.under_way:
            return
        sent = self.under_way.pop(0 if rng.random() < 0.6 else rng.randrange(len(self.under_way)))
        if rng.random() < 0.1:
            return
        if sent.grant is None:
            at = rng.randrange(len(self.under_way) + 1)
            self.under_way.insert(at, Sent(sent.holder, sent.ask, self.answer(sent)))
        for host in self.hosts:
            if host.name == sent.holder and sent.grant is not None and self.now - host.asked_ms < ANSWER_MS:
                host.allowance.answered(sent.ask.number, sent.grant, self.now)

    def answer(self, sent: Sent) -> Grant:
        if self.now < self.since + TTL_MS:
            return Grant(0, False, self.since + TTL_MS - self.now)
        kept = self.home.report(sent.holder, sent.ask, self.now)
        return self.home.lend(sent.holder, sent.ask, (), self.now, kept=kept)

    def enqueues(self) -> None:
        host = self.rng.choice(self.hosts)
        taken = host.allowance.take(self.rng.choice([1, self.quota.burst]), self.now)
        if taken:
            host.open.append(Spent(self.now, taken, host.allowance, host.allowance.term, taken))
            self.spent.append(host.open[-1])

    def settles(self) -> None:
        host = self.rng.choice(self.hosts)
        if host.open:
            one = host.open.pop(self.rng.randrange(len(host.open)))
            unused = self.rng.choice([0, one.taken])
            one.stored -= unused
            one.allowance.settle(one.taken, unused, one.term, self.now)

    def delivers(self) -> None:
        host = self.rng.choice(self.hosts)
        for _ in range(self.rng.choice([1, self.quota.burst])):
            if not host.allowance.spend(self.now):
                break
            self.spent.append(Spent(self.now, 1, host.allowance, host.allowance.term, 1))
            host.since_asked.append(self.spent[-1])

    def gives_back(self) -> None:
        host = self.rng.choice(self.hosts)
        if host.since_asked:
            one = host.since_asked.pop(self.rng.randrange(len(host.since_asked)))
            one.stored = 0
            host.allowance.give_back(self.now)


BURST = 100
QUOTA = Quota(100, BURST, None)


def granted(home: QuotaTokens, holder: str, ask: Ask, now_ms: int) -> Grant:
    return home.lend(holder, ask, (), now_ms, kept=home.report(holder, ask, now_ms))


def test_unspent_tokens_of_a_host_leave_no_room_until_they_end() -> None:
    home = QuotaTokens(QUOTA, 0)
    assert granted(home, "a", Ask(1, BURST, 0, 0), 10_000) == (BURST, True, 0)
    assert granted(home, "b", Ask(1, BURST, 0, 0), 10_000 + TTL_MS + 20).granted == 2
    assert granted(home, "b", Ask(2, BURST, 2, 0), 10_000 + TTL_MS + 20).granted == 0


def test_tokens_that_a_host_gives_back_too_late_are_lost() -> None:
    home = QuotaTokens(QUOTA, 0)
    granted(home, "a", Ask(1, BURST, 0, 0), 10_000)
    late_ms = 10_000 + TTL_MS + 1_000
    assert granted(home, "b", Ask(1, BURST, 0, 0), late_ms).granted == BURST
    granted(home, "b", Ask(2, 0, 0, 0), late_ms)
    granted(home, "a", Ask(2, 0, 0, BURST), late_ms)
    assert granted(home, "c", Ask(1, BURST, 0, 0), late_ms).granted == 0


def test_a_question_that_was_overtaken_changes_nothing() -> None:
    home = QuotaTokens(QUOTA, 0)
    assert granted(home, "a", Ask(2, BURST, 0, 0), 10_000).granted == BURST
    assert not granted(home, "a", Ask(1, BURST, 0, 0), 10_000).kept
    assert granted(home, "b", Ask(1, BURST, 0, 0), 10_900).granted == 0  # a's are still out


def test_an_allowance_that_was_forgotten_is_heard_again_at_once() -> None:
    home, host = QuotaTokens(Quota(1, 1, None), 0), new_host("a", 0)
    assert granted(home, "a", host.allowance.ask(1, 100, ahead=False), 100).granted == 0
    again = Allowance(1_000, host.numbers)
    assert granted(home, "a", again.ask(1, 1_000, ahead=False), 1_000).granted == 1


def test_other_hosts_can_use_returned_tokens_at_once() -> None:
    home = QuotaTokens(QUOTA, 0)
    granted(home, "a", Ask(1, BURST, 0, 0), 10_000)
    assert granted(home, "a", Ask(2, 0, 30, 70), 10_000) == (0, True, 0)
    assert granted(home, "b", Ask(1, BURST, 0, 0), 10_000) == (70, True, 300)


def test_a_smaller_burst_grants_nothing_while_more_is_out() -> None:
    home = QuotaTokens(QUOTA, 0)
    assert granted(home, "a", Ask(1, BURST, 0, 0), 10_000).granted == BURST
    home.follow(Quota(100, 10, None), 10_000)
    assert granted(home, "b", Ask(1, 1, 0, 0), 10_100).granted == 0
    assert granted(home, "a", Ask(2, 0, 11, 0), 10_200).kept
    assert granted(home, "b", Ask(2, 1, 0, 0), 10_300).granted == 0
    assert granted(home, "a", Ask(3, 0, 5, 0), 10_400).kept
    assert granted(home, "b", Ask(3, 9, 0, 0), 10_450).granted == 5


def test_a_smaller_burst_holds_at_once() -> None:
    home = QuotaTokens(QUOTA, 0)
    assert granted(home, "a", Ask(1, 0, 0, 0), 10_000).granted == 0
    home.follow(Quota(100, 10, None), 10_000)
    assert granted(home, "b", Ask(1, BURST, 0, 0), 10_000).granted == 10


def test_a_fractional_rate_adds_up_exactly() -> None:
    """Six a minute, in steps of 7 ms."""
    home = ThrottleTokens(Quota(0.1, 1, None), 0)
    grants = [(now, home.lend("a", Ask(now, 1, 0, 0), now)) for now in range(10_500, 200_000, 7)]
    at = [now for now, grant in grants if grant.granted]
    assert len(at) == 19 and at[0] == 10_500
    assert all(later - earlier >= 10_000 for earlier, later in pairwise(at))
    assert [grant for _, grant in grants[1:3]] == [
        (0, True, 10_000),
        (0, True, 9_993),
    ]  # the first says that it is spent


def test_a_token_returns_until_the_next_question_only() -> None:
    allowance = Allowance(0, count(1))
    allowance.answered(allowance.ask(2, 0, ahead=False).number, Grant(2, True, 0), 0)
    assert allowance.spend(1) and allowance.spend(1) and not allowance.spend(1)
    assert allowance.give_back(2) and allowance.balance == 1
    allowance.ask(1, 3, ahead=False)
    assert not allowance.give_back(4)  # the other one counts as spent
    assert allowance.spend(5)
    assert not allowance.give_back(TTL_MS)


def test_tokens_that_end_unspent_are_counted() -> None:
    lost = Lost()
    allowance = Allowance(0, count(1), lost)
    allowance.answered(allowance.ask(5, 0, ahead=False).number, Grant(5, True, 0), 0)
    assert allowance.spend(1) and allowance.good(TTL_MS - 1) == 4 and lost.tokens == 0
    assert allowance.good(TTL_MS) == 0 and lost.tokens == 4
    allowance.answered(allowance.ask(3, 2_000, ahead=False).number, Grant(3, True, 0), 2_000)
    allowance.answered(allowance.ask(0, 2_001, ahead=False).number, Grant(0, False, 0), 2_001)
    assert allowance.good(2_001) == 0 and lost.tokens == 7


def test_tokens_are_conserved() -> None:
    for seed in range(3_000):
        try:
            Tokens(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("per_second", [20, 1_000, 50_000])
@pytest.mark.parametrize("hosts", [1, 2, 8])
def test_hosts_that_have_enough_to_do_use_the_rate(per_second: int, hosts: int) -> None:
    """This holds also when most hosts fall silent: their tokens reach the hosts that still need them."""
    rng, quota, home = random.Random(per_second + hosts), Quota(per_second, per_second, None), None
    home = QuotaTokens(quota, 0)
    members = [new_host(str(n), 0) for n in range(hosts)]
    answers: list[tuple[int, Host, Ask, Grant]] = []
    stored = 0
    trip_ms = 2
    for now in range(10_000):
        for at, host, ask, grant in list(answers):
            if at <= now:
                answers.remove((at, host, ask, grant))
                host.allowance.answered(ask.number, grant, now)
        busy = members if now < 5_000 else members[:1]
        for host in members:
            need = 0
            if host in busy:
                wanted = max(1, int(2 * per_second / 1_000 * rng.random() * 2))
                taken = host.allowance.take(wanted, now)
                stored += taken
                host.allowance.settle(taken, 0, host.allowance.term, now)
                need = wanted - taken
            spare = now % 500 == 0
            if spare:
                host.allowance.beat(now)
            idle = not host.allowance.balance and not need
            if host.allowance.asked is None and ((spare and not idle) or (need and not host.allowance.dry(now))):
                ask = host.allowance.ask(need, now, ahead=True, spare=spare)
                kept = home.report(host.name, ask, now)
                answers.append((now + trip_ms, host, ask, home.lend(host.name, ask, (), now, kept=kept)))
    assert 0.95 * 10 * per_second <= stored <= quota.burst + 10 * per_second


def test_shards_are_never_taken_to_store_less_than_they_may() -> None:
    """A bound on stored items holds with counts of any age, taken at any time."""
    rng = random.Random(7)
    for _ in range(300):
        quota = Quota(None, 0, rng.randrange(1, 60))
        home, shards = QuotaTokens(quota, 0), {1: 0, 2: 0, 3: 0}
        hosts = [new_host(str(n), 0) for n in range(2)]
        open_: list[tuple[Host, int]] = []
        marks: list[tuple[int, int]] = []  # shard, mark: counts that were begun
        for now in range(120):
            match rng.randrange(6):
                case 0:  # a question, and its answer
                    host = rng.choice(hosts)
                    ask = host.allowance.ask(rng.randrange(12), now, ahead=False, spare=rng.random() < 0.3)
                    kept = home.report(host.name, ask, now)
                    grant = home.lend(host.name, ask, shards, now, kept=kept)
                    if rng.random() < 0.8:
                        host.allowance.answered(ask.number, grant, now)
                case 1:
                    host = rng.choice(hosts)
                    open_.append((host, host.allowance.take(rng.randrange(6), now)))
                case 2 if open_:  # stored, or some of it refused
                    host, taken = open_.pop(rng.randrange(len(open_)))
                    unused = rng.randrange(taken + 1)
                    shards[rng.choice(list(shards))] += taken - unused
                    host.allowance.settle(taken, unused, host.allowance.term, now)
                case 3:
                    marks.append((rng.choice(list(shards)), home.mark(now)))
                case 4 if marks:
                    shard, mark = marks.pop()
                    home.counted(shard, shards[shard], mark)
                case 5:  # consumers
                    shard = rng.choice(list(shards))
                    shards[shard] = max(0, shards[shard] - rng.randrange(4))
            assert quota.stored_items is not None
            assert sum(shards.values()) <= quota.stored_items


def test_a_shard_that_returns_is_counted_again() -> None:
    """Another cluster may have changed its items. While it is removed, nothing waits for it."""
    home = QuotaTokens(Quota(None, 0, 10), 0)
    for shard in (1, 2):
        home.counted(shard, 3, home.mark(0))
    assert home.left({1, 2}) == 4
    assert home.left({1}) == 7
    assert home.left({1, 2}) is None
    home.counted(2, 7, home.mark(1))
    assert home.left({1, 2}) == 0
