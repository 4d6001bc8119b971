"""Batches of items in a cluster whose hosts and consumers are killed, while its shards move: whether each batch ended
when its last member had, with the right counts, and stored each of its callbacks once.

A member whose enqueue has no answer is one if it came, for all items come before the end of the run. A member ends for
certain after its ack is sent, if the ack was not refused. Times of clients are of one clock. The times that hosts gave
to items and ends are compared with `_CLOCK_MS` to spare.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import monotonic, monotonic_ns, sleep, time_ns

from foqs.client import Client
from foqs.item_batch import MOST_FAILED_IDS, BatchState, Counts
from foqs_lab.cluster import LocalCluster, Shard, local_cluster
from foqs_lab.crash.batch_history import LIVE_SQL, OPEN_SQL, Call, Kept, Row, Seen, Story, count
from foqs_lab.crash.batch_process import (
    FAILING,
    LEASE_MS,
    NAMESPACE,
    RETRY_MS,
    BatchPart,
    callbacks_of,
)
from foqs_lab.crash.crew import ClientProcess, Crew
from foqs_lab.crash.history import NS_PER_MS
from foqs_lab.crash.jobs import Journal
from foqs_lab.crash.losses import NEVER
from foqs_lab.crash.schedules import addresses_of

_SETTINGS = {"zookeeper": {"session_timeout_ms": 3_000, "settle_ms": 1_000}}
_MODULE = "foqs_lab.crash.batch_process"
_PRODUCERS, _CONSUMERS, _THREADS = 2, 3, 2
_BACKLOG, _LEAST_BACKLOG = 0.02, 1_000
"""Of the members."""
_STORED = 0.9
"""About this share of the members is stored: batches that end early get fewer."""
_DRAIN_S = 180.0
_CLOCK_MS = 5
_STATES = {
    BatchState.SUCCEEDED: "completed",
    BatchState.ENDED: "failed",
    BatchState.EXPIRED: "expired",
    BatchState.CANCELLED: "cancelled",
}


class Check:
    """Compares what clients saw with what databases hold. `offset_ms`: what to add to the monotonic clock to get the
    time of the day."""

    def __init__(self, seen: Seen, kept: Kept, offset_ms: float) -> None:
        self._seen, self._kept, self._offset_ms = seen, kept, offset_ms
        self._children = kept.children()
        self._ids = {story.id: story for story in seen.stories.values() if story.id}

    def lies(self) -> Iterator[str]:
        """Yield every promise that was broken."""
        for story in self._seen.stories.values():
            yield from (f"batch {story.name} ({story.id}): {one}" for one in self._of(story))
        lost = [row for batch, row in self._kept.rows.items() if batch not in self._ids]
        if len(lost) > self._seen.lost:
            yield f"{len(lost)} batches without a client, and {self._seen.lost} creations without an answer"
        for row in lost:
            yield from (f"batch {row.id}, which no client knows: {one}" for one in self._callbacks(row))
        for batch in self._seen.calls.keys() - self._kept.rows.keys():
            yield f"batch {batch} called back, and there is no such batch"
        for batch in sorted({batch for batch in self._kept.waiting if batch in self._ids}):
            yield f"batch {batch} has rows of members that have not ended"

    def _of(self, story: Story) -> Iterator[str]:
        yield from story.lies
        for number in sorted(story.refused & {number for number, item in story.numbers.items() if item in story.came}):
            yield f"its member {number} was refused, and came"
        for item_id in sorted(story.came.keys() & story.over.keys()):
            if story.came[item_id] > story.over[item_id]:
                yield f"its member {item_id} came after its ack"
        row = self._kept.rows.get(story.id)
        if row is None:
            if story.id or story.ids:
                yield "it has no row"
            return
        if not row.ended_at_ms:
            yield f"it is open: state {row.state}"
            return
        counts = self._kept.parts.get(row.id, Counts())
        yield from self._state(story, row, counts)
        yield from self._callbacks(row, story)
        for call in self._seen.calls[row.id]:
            yield from self._headers(call, row, counts)
        yield from self._refused(story, row)
        if row.state in (BatchState.SUCCEEDED, BatchState.ENDED):
            yield from self._whole(story, row, counts)
        elif row.state == BatchState.CANCELLED:
            yield from self._partial(story, row, counts)
        elif counts.completed > len(story.acked()) + len(self._children[row.id]):
            yield f"its counts are {counts}, and {len(story.acked())} members were acked"
        if row.state != BatchState.EXPIRED and counts != self._kept.counted.get(row.id, Counts()):
            yield f"its counts are {counts}, and its shards counted {self._kept.counted.get(row.id)}"

    def _state(self, story: Story, row: Row, counts: Counts) -> Iterator[str]:
        if story.cancelled_ns != NEVER:
            wanted = BatchState.CANCELLED
        elif story.kind == "expired":
            wanted = BatchState.EXPIRED
            if row.ended_at_ms < row.expires_at_ms:
                yield f"it expired {row.expires_at_ms - row.ended_at_ms} ms early"
        else:
            wanted = BatchState.SUCCEEDED if counts.completed == counts.members else BatchState.ENDED
        if row.state != wanted:
            yield f"its state is {BatchState(row.state).name} and not {wanted.name}: {counts}"

    def _callbacks(self, row: Row, story: Story | None = None) -> Iterator[str]:
        for kind, stored in (("success", row.success_id), ("end", row.end_id)):
            ids = {call.id for call in self._seen.calls[row.id] if call.kind == kind}
            if ids != ({stored} if stored else set()):
                yield f"its {kind} callbacks are {sorted(ids)}, and its row says {stored}"
            if story is None:
                continue
            wanted = kind in callbacks_of(story.name) and (kind == "end" or row.state == BatchState.SUCCEEDED)
            if bool(stored) != wanted:
                yield f"its {kind} callback is {stored}, and {wanted} that it has one"

    def _headers(self, call: Call, row: Row, counts: Counts) -> Iterator[str]:
        if call.kind != "end":
            return
        says = json.loads(call.headers["foqs-batch-counts"])
        if says != {name: value for name, value in counts._asdict().items() if value}:
            yield f"its header has the counts {says}, and its home {counts}"
        if call.headers["foqs-batch-state"] != BatchState(row.state).name:
            yield f"its header has the state {call.headers['foqs-batch-state']}, and its row {row.state}"
        if row.state in (BatchState.SUCCEEDED, BatchState.ENDED):
            failed = [one.id for one in self._children[row.id] if one.state == BatchState.ENDED]
            first = sorted([*self._kept.dead.get(row.id, ()), *failed])[:MOST_FAILED_IDS]
            if call.headers["foqs-batch-failed"] != ",".join(map(str, first)):
                yield f"its header has the failed members {call.headers['foqs-batch-failed']}, and these are {first}"

    def _refused(self, story: Story, row: Row) -> Iterator[str]:
        for ended in story.invalid:
            if ended < story.cancelled_ns and self._wall(ended) < row.ended_at_ms - _CLOCK_MS:
                yield f"it refused members {row.ended_at_ms - self._wall(ended):.0f} ms before its end"
                return

    def _whole(self, story: Story, row: Row, counts: Counts) -> Iterator[str]:
        """Check a batch of which all members have ended by themselves."""
        dead, children = set(self._kept.dead.get(row.id, ())), self._children[row.id]
        ends = Counter(_STATES[BatchState(child.state)] for child in children if child.ended_at_ms)
        ends["completed"] += len(story.ids - dead)
        ends["failed"] += len(dead)
        wanted = Counts(**{**ends, "members": len(story.ids) + len(children)})
        if counts != wanted or dead - story.ids:
            yield f"its counts are {counts}, and its members {wanted}"
        acks = story.acked()
        first = min((call.ended for call in self._seen.calls[row.id]), default=NEVER)
        for item_id in story.ids - dead:
            acked = acks.get(item_id)
            if acked is None:
                yield f"its member {item_id} was stored and never acked"
            elif acked > first or self._wall(acked) > row.ended_at_ms + _CLOCK_MS:
                yield f"it ended {self._wall(acked) - row.ended_at_ms:.0f} ms before the ack of its member {item_id}"
        for child in children:
            if not child.ended_at_ms or child.ended_at_ms > row.ended_at_ms + _CLOCK_MS:
                yield f"it ended before the batch {child.id}, which is a member"

    def _partial(self, story: Story, row: Row, counts: Counts) -> Iterator[str]:
        """Check a batch that was cancelled: of an enqueue without an answer, the member may never have come."""
        least = len(story.ids) + len(self._children[row.id])
        if not least <= counts.members <= least + story.unknown + self._seen.lost or counts.ended != counts.members:
            yield f"its counts are {counts}, and it has {least} members, {story.unknown} more without an answer"
        most = len(story.acked()) + len(self._children[row.id])
        # The ack of a lease that is over succeeds, too, when the item ends anyway.
        timely = sum(at < story.came.get(item_id, 0) + LEASE_MS * NS_PER_MS for item_id, at in story.over.items())
        if not timely <= counts.completed <= most:
            yield f"its counts are {counts}, and {timely} members were acked in time, {most} at most"

    def _wall(self, at_ns: int) -> float:
        return at_ns / NS_PER_MS + self._offset_ms

    def delays_ms(self, trouble: Sequence[tuple[int, int]]) -> list[float]:
        """Return the times from the answer of the last ack to the delivery of the callback, of batches that were closed
        before, and that ended while nothing was away."""
        found = []
        for story in self._seen.stories.values():
            calls, last = self._seen.calls[story.id], story.last_end_ns
            plain = story.kind not in ("nested", "deep", "cancelled", "expired")
            if plain and calls and 0 < story.closed_ns < last:
                first = min(call.ended for call in calls)
                if not any(began < first and last < ended + LEASE_MS * NS_PER_MS for began, ended in trouble):
                    found.append(max(0.0, (first - last) / NS_PER_MS))
        return found


@dataclass
class Report:
    seed: int
    batches: Counter[str]
    members: int
    counts: Counter[str]
    kills: Counter[str]
    delays_ms: list[float]
    lies: list[str]
    left: list[str] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def good(self) -> bool:
        return not (self.lies or self.left)

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.batches.total():,} batches with {self.members:,} members in {self.took_s:.0f} s "
            f"({self.members / max(self.took_s, 0.1):,.0f} members a second); kills: {_listed(self.kills)}",
            f"batches by state: {_listed(self.batches)}",
            _listed(self.counts),
        ]
        if delays := self.delays_ms:
            lines.append(
                f"from the last ack to the callback, {len(delays)} batches without a kill: median "
                f"{median(delays):.0f} ms, worst {max(delays):.0f} ms"
            )
        lines += [f"{len(self.lies)} lies"] if self.lies else []
        return "\n  ".join([*lines, *self.lies[:20], *self.left[:10]])


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in sorted(counts.items()))


def run_batches(
    shards: Sequence[Shard], folder: Path, seed: int, batches: int, members: int, kills: int, hosts: int = 3
) -> Report:
    """Make `batches` batches with `members` members each through `kills` kills, and have them end. Logs go to `folder`.
    Raises TimeoutError."""
    seen, journal, total = Seen(), Journal(folder), batches * members
    with ExitStack() as stack:
        cluster = stack.enter_context(local_cluster(shards, folder, _SETTINGS))
        cluster.start(*[f"host-{number + 1}" for number in range(hosts)])
        cluster.settled()
        with Client(addresses_of([host.port for host in cluster.hosts.values()]), NAMESPACE) as client:
            client.put_settings({"topic.*": _policy(0), f"topic.{FAILING}": _policy(1)})
        begun, offset_ms = monotonic(), (time_ns() - monotonic_ns()) / NS_PER_MS
        part = BatchPart(str(folder), [host.port for host in cluster.hosts.values()], f"{seed}/consumer", _THREADS)
        crew = _crew(cluster, part, seed, batches, members)
        stack.callback(crew.close)

        def progress() -> float:
            """Read the journals, and return the share of the members that have ended."""
            sleep(0.1)
            seen.take(journal.read())
            live = count(shards, LIVE_SQL)
            if live > max(_LEAST_BACKLOG, total * _BACKLOG):
                part.full.touch()
            else:
                part.full.unlink(missing_ok=True)
            return (seen.stored - live) / (total * _STORED)

        def over() -> bool:
            """A batch ends with new items, its callbacks: so items are counted after batches."""
            makes = any(producer.alive for producer in crew.producers)
            return not makes and count(shards, OPEN_SQL) <= seen.lost and not count(shards, LIVE_SQL)

        for number in range(kills):
            while progress() < (number + 1) / (kills + 1) and not over():
                pass
            crew.kill(number)
        while any(producer.alive for producer in crew.producers):
            progress()
        deadline = monotonic() + _DRAIN_S
        while not over() and monotonic() < deadline:
            progress()
        took_s = monotonic() - begun
        crew.close()
        seen.take(journal.read())
        report = verdict(seen, Kept.read(shards), seed, offset_ms, crew)
        if live := count(shards, LIVE_SQL):
            report.left.append(f"{live:,} items are left")
        report.left += [line for host in cluster.hosts.values() for line in host.faults()]
        report.left += crew.errors()
        report.took_s = took_s
        return report


def _crew(cluster: LocalCluster, part: BatchPart, seed: int, batches: int, members: int) -> Crew:
    share = replace(part, batches=batches, members=members, step=_PRODUCERS)
    producers = [
        ClientProcess(_MODULE, replace(share, seed=f"{seed}/producer {n}", first=n), f"producer-{n}")
        for n in range(_PRODUCERS)
    ]
    consumers = [
        ClientProcess(_MODULE, replace(part, seed=f"{seed}/consumer {n}"), f"consumer-{n}") for n in range(_CONSUMERS)
    ]
    return Crew(cluster, seed, producers, consumers)


def _policy(max_attempts: int) -> str:
    return json.dumps({"max_attempts": max_attempts, "retry": {"kind": "constant", "first_ms": RETRY_MS}})


def verdict(seen: Seen, kept: Kept, seed: int, offset_ms: float, crew: Crew) -> Report:
    check = Check(seen, kept, offset_ms)
    states = Counter(BatchState(row.state).name.lower() for row in kept.rows.values())
    lies = list(check.lies())
    return Report(seed, states, seen.stored, seen.counts, crew.kills, check.delays_ms(crew.trouble), lies)
