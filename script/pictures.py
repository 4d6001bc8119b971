#!/usr/bin/env python3
"""Writes the pictures of the concepts and of the architecture, from what the code does: script/pictures.py [--check]

The arrows between the states of an item are those of the table in `foqs.item`; orders, shares, limits and delays come
from the functions that a host or a worker uses. `--check` writes nothing, and ends with status 1 if a picture is not
current.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from inspect import signature
from math import log10
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # or the pictures would tell of another checkout, where foqs is installed from

from foqs import item as states  # noqa: E402
from foqs.bounds import Quota  # noqa: E402
from foqs.client import Worker  # noqa: E402
from foqs.client._sync.leases import EXTEND_AFTER  # noqa: E402
from foqs.limits.bucket import Ask, ThrottleTokens  # noqa: E402
from foqs.limits.lease_slots import LeaseSlots, SlotAsk  # noqa: E402
from foqs.policies.topic_policy import PolicyEntry  # noqa: E402
from foqs.prefetch.lane import Entry, Window, first_of, known_until  # noqa: E402
from foqs.shardmgr.assignment import Situation, balance  # noqa: E402
from tests.fairness.turns_model import Rig  # noqa: E402

IMAGES = ROOT / "docs" / "learn" / "images"
WIDTH = 720
INK, LINE, PAPER = "#1f2328", "#57606a", "#ffffff"
GREY, BLUE, ORANGE, GREEN, RED = "#eaeef2", "#cfe4f7", "#fbdfb8", "#cdebd3", "#f6cfcb"

Parts = Iterable[str]


class Picture(NamedTuple):
    title: str
    height: int
    parts: Parts


class Untrue(Exception):
    """A picture that would say something else than the code."""


def drawn(picture: Picture) -> str:
    """Return the picture as SVG. It has its own ground: a page may be light or dark."""
    title, height, parts = picture
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="14" fill="{INK}" role="img">'
    )
    tip = (
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{LINE}"/></marker>'
    )
    ground = f'<rect width="{WIDTH}" height="{height}" rx="6" fill="{PAPER}"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", tip, ground, *parts, "</svg>", ""])


def text(x: float, y: float, words: str, *, anchor: str = "middle", bold: bool = False) -> str:
    """Return words whose base line is at `y`. They have a light edge, so that lines behind them do not hide them."""
    weight = ' font-weight="bold"' if bold else ""
    edge = f'stroke="{PAPER}" stroke-width="4" paint-order="stroke" stroke-linejoin="round"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight} {edge}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str, *words: str) -> str:
    """Return a box with lines of words, the first one bold."""
    shape = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="4" fill="{colour}" '
        f'stroke="{LINE}"/>'
    )
    middle, first = x + width / 2, y + height / 2 + 5 - 9 * (len(words) - 1)
    bold = (' font-weight="bold"', *("" for _ in words))
    inside = [
        f'<text x="{middle:.1f}" y="{first + 18 * at:.1f}" text-anchor="middle"{bold[at]}>{escape(one)}</text>'
        for at, one in enumerate(words)
    ]
    return "\n".join([shape, *inside])


def line(path: str, *, tip: bool = False, dashed: bool = False) -> str:
    style = (' marker-end="url(#tip)"' if tip else "") + (' stroke-dasharray="4 4"' if dashed else "")
    return f'<path d="{path}" fill="none" stroke="{LINE}" stroke-width="1.3"{style}/>'


class Scale(NamedTuple):
    """Seconds from left to right, above a line at `y`."""

    left: float
    width: float
    seconds: float
    y: float

    def x(self, second: float) -> float:
        return self.left + self.width * second / self.seconds

    def axis(self, step: int) -> Iterator[str]:
        yield line(f"M{self.left} {self.y}h{self.width}")
        for second in range(0, int(self.seconds) + 1, step):
            yield line(f"M{self.x(second):.1f} {self.y}v5")
            yield text(self.x(second), self.y + 20, f"{second} s" if second else "0")


# --------------------------------------------------------------------------------------------- an item's states

STATE_OF: Mapping[states.Known, str] = {
    states.IDLE: "ready",
    states.WINDOW: "ready",
    states.UNWRITTEN: "leased",
    states.WRITTEN: "leased",
    states.DELAYED: "delayed",
}
DEAD, ENDED = "dead letter", "ended"
BOXES = {
    "delayed": (180, 40, 130, 54, ORANGE, ""),
    "ready": (180, 190, 130, 54, BLUE, ""),
    "leased": (550, 190, 130, 54, GREEN, ""),
    DEAD: (180, 340, 130, 54, RED, "in its own topic"),
    ENDED: (550, 340, 130, 54, GREY, "removed, or kept"),
}


class Step(NamedTuple):
    path: str
    words: str
    x: float
    y: float


STEPS: Mapping[tuple[str, str], Step] = {
    ("ready", "leased"): Step("M310 205H550", "a consumer dequeues it", 430, 199),
    ("leased", "ready"): Step("M550 231H310", "given back, or the lease ended", 430, 250),
    ("leased", "delayed"): Step("M615 190V67H310", "the attempt failed: again after a delay", 455, 61),
    ("delayed", "ready"): Step("M215 94V190", "the delay is over", 208, 150),
    ("ready", "delayed"): Step("M275 190V94", "an operator delays it", 352, 147),
    ("leased", DEAD): Step("M590 244V296H345V367H310", "the last attempt failed, or a reject", 467, 289),
    ("leased", ENDED): Step("M645 244V340", "acked", 670, 293),
    ("ready", DEAD): Step("M245 340V244", "redriven", 238, 300),
}
"""How each step of the table is drawn. The words of a redrive are for the usual case: an item with more attempts than a
limit that was lowered goes the other way."""
NOT_DRAWN = {("ready", ENDED), ("delayed", ENDED), ("delayed", DEAD)}
"""A delete, a TTL, and the redrive of a dead letter that was delayed: words below the picture say the first two."""


def steps_of_the_table() -> set[tuple[str, str]]:
    """Return the steps between the states that users see. A row that moves is of a dead letter, before or after."""
    found = {(STATE_OF[before], STATE_OF[after]) for moves in states._MOVES.values() for before, after in moves.items()}
    other = {states.To.GONE: ENDED, states.To.MOVED: DEAD}
    for by, commits in states._COMMITS.items():
        found |= {(STATE_OF[before], other.get(by) or STATE_OF[after]) for before, after in commits.items()}
    return {(before, after) for before, after in found if before != after}


def life_of_an_item() -> Picture:
    """Raises Untrue if the table has other steps than the picture."""
    different = steps_of_the_table() ^ (STEPS.keys() | NOT_DRAWN)
    if different or not set(STATE_OF) == set(states.NAMES):
        raise Untrue(f"foqs.item and the picture differ about {sorted(different)}")
    parts = [
        text(20, 222, "enqueue", anchor="start", bold=True),
        line("M92 217H180", tip=True),
        line("M50 202V67H180", tip=True),
        text(57, 61, "with a delay", anchor="start"),
        *(line(step.path, tip=True) for step in STEPS.values()),
        *(text(step.x, step.y, step.words, anchor="end" if step.x < 240 else "middle") for step in STEPS.values()),
        *(box(*place, name, *([words] if words else [])) for name, (*place, words) in BOXES.items()),
        text(360, 430, "A delete ends an item in any state. A TTL ends it unless a consumer has it."),
    ]
    return Picture("The states of an item", 450, parts)


# --------------------------------------------------------------------------------------------- the order

SHARDS: Mapping[str, tuple[str, Parts]] = {
    "shard 1": (BLUE, ("0 9:00", "0 9:04", "5 9:01")),
    "shard 2": (ORANGE, ("0 9:03", "-1 9:05", "0 9:02")),
    "shard 3": (GREEN, ("10 9:00", "-1 9:06")),
}
"""Items of a topic on three shards, in the order of storing: priority, and the time from which it may be delivered."""


def order_of_a_topic() -> Picture:
    windows: dict[str, Window[tuple[str, str]]] = {}
    number = 0
    for shard, (colour, items) in SHARDS.items():
        windows[shard] = Window(complete=True, page_rows=100)
        for one in items:
            number += 1
            priority, time = one.split()
            hour, minute = time.split(":")
            windows[shard].add((int(priority), 60 * int(hour) + int(minute), number, (colour, one)))
    merged = first_of([*windows.values()], number, known_until([*windows.values()]))
    parts = [text(20, 28, "Each shard keeps its items in order:", anchor="start", bold=True)]
    for at, (shard, window) in enumerate(windows.items()):
        parts += [text(20, 68 + 54 * at, shard, anchor="start"), *_row(94, 42 + 54 * at, window.entries)]
    parts += [
        text(20, 236, "A dequeue takes the first of all:", anchor="start", bold=True),
        *_row(20, 250, merged),
        line("M20 308H694", tip=True),
        text(20, 328, "first", anchor="start"),
        text(694, 328, "last", anchor="end"),
    ]
    return Picture("The order of a topic over its shards", 342, parts)


def _row(left: float, y: float, entries: Iterable[Entry[tuple[str, str]]]) -> Iterator[str]:
    for at, (*_, (colour, one)) in enumerate(entries):
        priority, time = one.replace("-", "−").split()
        yield box(left + 85 * at, y, 78, 44, colour, priority, time)


# --------------------------------------------------------------------------------------------- leases


def life_of_a_lease() -> Picture:
    """A worker that extends a lease, dies, and another one that gets the item when the lease has ended."""
    lease_s = signature(Worker.__init__).parameters["lease_ms"].default / 1000
    every_s = lease_s * EXTEND_AFTER
    died_s = 2.5 * every_s
    end_s = every_s * int(died_s / every_s) + lease_s
    acked_s = end_s + 1.6 * every_s
    time = Scale(100, 590, 75, 226)
    ticks = [(34, at * every_s) for at in range(1, int(died_s / every_s) + 1)]
    ticks += [(144, end_s + at * every_s) for at in range(1, int((acked_s - end_s) / every_s) + 1)]
    parts = [
        *time.axis(10),
        text(90, 61, "worker A", anchor="end"),
        box(time.x(0), 36, time.x(died_s) - time.x(0), 40, BLUE, "works"),
        text(time.x(died_s) + 6, 61, "is killed", anchor="start"),
        text(90, 116, "lease", anchor="end"),
        box(time.x(0), 91, time.x(end_s) - time.x(0), 40, GREY, "of A: no other worker gets the item"),
        box(time.x(end_s), 91, time.x(acked_s) - time.x(end_s), 40, GREY, "of B"),
        text(90, 171, "worker B", anchor="end"),
        box(time.x(end_s), 146, time.x(acked_s) - time.x(end_s), 40, GREEN, "works again"),
        text(time.x(acked_s) + 6, 171, "acks", anchor="start"),
        text(690, 26, "▼ the worker extends the lease", anchor="end"),
    ]
    parts += [text(time.x(second), y, "▼") for y, second in ticks]
    parts += [
        line(f"M{time.x(end_s):.1f} 84V216", dashed=True),
        text(time.x(end_s) - 6, 206, "the lease ends by time", anchor="end"),
    ]
    return Picture("A lease that ends by time", 260, parts)


# --------------------------------------------------------------------------------------------- fairness

TENANTS = {"acme": BLUE, "birch": ORANGE, "cedar": GREEN}
LETTERS = {"acme": "a", "birch": "b", "cedar": "c"}


def turns_of_tenants() -> Picture:
    """A backlog of one tenant, and the items of two others that come after it. One has twice the weight."""
    stored = {"acme": 8, "birch": 4, "cedar": 4}
    rig = Rig()
    for name, items in stored.items():
        rig.join(name, items, 2 if name == "birch" else 1)
    rig.picks(sum(stored.values()))
    rows = (("Stored:", [name for name, items in stored.items() for _ in range(items)]), ("Delivered:", rig.order))
    parts: list[str] = []
    for top, (words, names) in zip((20, 100), rows, strict=True):
        parts.append(text(20, top + 14, words, anchor="start", bold=True))
        seen: Counter[str] = Counter()
        for at, name in enumerate(names):
            seen[name] += 1
            parts.append(box(20 + 42.6 * at, top + 24, 38, 34, TENANTS[name], f"{LETTERS[name]}{seen[name]}"))
    parts.append(text(20, 190, "acme (a) and cedar (c) have weight 1, birch (b) has weight 2", anchor="start"))
    return Picture("The turns of three tenants", 206, parts)


RATE, END_S = 60, 60


def shares_of_tenants() -> Picture:
    """Consumers take `RATE` items a second, of what the tenants have by then."""
    arrivals = {0: ("acme", 10_000, 1), 10: ("birch", 10_000, 1), 25: ("cedar", 600, 2)}
    rig, given = Rig(), []
    for second in range(END_S):
        if second in arrivals:
            rig.join(*arrivals[second])
        given.append(Counter(rig.picks(RATE)))
    time = Scale(60, 560, END_S, 230)
    parts = [*time.axis(10), text(20, 24, f"Items in each second, of {RATE}", anchor="start", bold=True)]
    for second, counts in enumerate(given):
        low = time.y
        for name, colour in TENANTS.items():
            high = low - 180 * counts[name] / RATE
            if counts[name]:
                parts.append(
                    f'<rect x="{time.x(second):.1f}" y="{high:.1f}" width="{time.x(1) - time.x(0) + 0.2:.1f}" '
                    f'height="{low - high:.1f}" fill="{colour}" shape-rendering="crispEdges"/>'
                )
            low = high
    parts += [text(52, time.y - 180 * share / RATE + 5, str(share), anchor="end") for share in (0, 15, 30, 45, 60)]
    parts += [
        line(f"M{time.left} 50V{time.y}"),
        text(time.x(5), 150, "acme"),
        text(time.x(17), 185, "acme"),
        text(time.x(17), 95, "birch"),
        text(time.x(35), 212, "acme"),
        text(time.x(35), 167, "birch"),
        text(time.x(35), 100, "cedar, weight 2"),
        text(time.x(52.5), 185, "acme"),
        text(time.x(52.5), 95, "birch"),
    ]
    return Picture("The shares of three tenants in time", 264, parts)


# --------------------------------------------------------------------------------------------- limits

PER_SECOND, BURST = 5, 10


def deliveries_at_a_rate() -> Picture:
    """Forty items that wait at the start, and thirty after a pause."""
    tokens = ThrottleTokens(Quota(PER_SECOND, BURST, None), -1_000 * BURST)
    waiting, delivered = 40, Counter[int]()
    for at, now_ms in enumerate(range(0, 18_000, 50)):
        waiting += 30 if now_ms == 12_000 else 0
        got = tokens.lend("host", Ask(at, waiting, held=0, back=0), now_ms).granted
        waiting -= got
        delivered[now_ms // 1000] += got
    time = Scale(60, 630, 18, 210)
    unit = 150 / max(delivered.values())
    parts = [*time.axis(2), text(20, 24, "Items delivered in each second", anchor="start", bold=True)]
    for second in range(18):
        high = unit * delivered[second]
        if high:
            parts.append(box(time.x(second) + 3, time.y - high, time.x(1) - time.x(0) - 6, high, BLUE))
            parts.append(text(time.x(second + 0.5), time.y - high - 6, str(delivered[second])))
    y = time.y - unit * PER_SECOND
    parts += [
        line(f"M{time.left} {y:.1f}h{time.width}", dashed=True),
        text(52, y + 5, str(PER_SECOND), anchor="end"),
        text(time.x(10), y - 24, "no items wait:"),
        text(time.x(10), y - 7, "tokens fill up"),
    ]
    return Picture("Deliveries at a rate with a burst", 244, parts)


JOBS = (5, 3, 6, 2, 4, 3)
SLOTS = 2


def jobs_in_slots() -> Picture:
    """Six items of one throttle key, enqueued together: when the ledger of its slots lets each of them begin."""
    slots = LeaseSlots(SLOTS, 60_000, (1,), 0)
    slots.counted(1, 1, 0, 0, 0)
    waiting, ends, spans = [*enumerate(JOBS)], dict[int, float](), []
    for second in range(sum(JOBS)):
        ends = {job: end for job, end in ends.items() if end > second}
        held = len(ends)
        grant = slots.lend(SlotAsk(1, 1, second + 1, held, held, len(waiting)), 1_000 * second)
        for _ in range(grant.granted if grant is not None else 0):
            job, seconds = waiting.pop(0)
            ends[job] = second + seconds
            spans.append((job, second, second + seconds))
    time = Scale(60, 600, max(end for *_, end in spans) + 1, 226)
    parts = [*time.axis(2), text(20, 24, f"Six items with one key, and {SLOTS} slots", anchor="start", bold=True)]
    for job, begin, end in spans:
        y = 40 + 30 * job
        parts.append(text(50, y + 17, str(job + 1), anchor="end"))
        if begin:
            parts.append(line(f"M{time.left} {y + 12}H{time.x(begin):.1f}", dashed=True))
        parts.append(box(time.x(begin), y, time.x(end) - time.x(begin), 24, GREEN, "leased"))
    return Picture("Jobs at a time", 260, parts)


# --------------------------------------------------------------------------------------------- order keys

KEYS: Mapping[str, tuple[str, tuple[tuple[str, float, int], ...]]] = {
    "order-42": (BLUE, (("created", 1.2, 1), ("paid", 1.2, 0), ("sent", 1.2, 0))),
    "order-43": (ORANGE, (("created", 1, 0), ("paid", 1, 0), ("sent", 1, 0))),
    "no key": (GREEN, (("a", 1.6, 0), ("b", 1.6, 0))),
}
"""By order key the items, with the seconds of each attempt, and the attempts that fail."""


def items_in_order() -> Picture:
    """Items that wait together. An attempt begins as early as their keys allow, with a free worker for each."""
    retry = PolicyEntry().retry
    assert retry is not None
    time = Scale(100, 590, 6, 196)
    parts, top = [*time.axis(1)], 24
    for key, (colour, items) in KEYS.items():
        ordered = key in ("order-42", "order-43")
        parts.append(text(90, top + 21, key, anchor="end", bold=True))
        free_s = 0.0
        for at, (words, seconds, failures) in enumerate(items):
            begin, y = (free_s, top) if ordered else (0.0, top + 30 * at - 15)
            for attempt in range(1, failures + 1):
                parts.append(box(time.x(begin), y, time.x(seconds) - time.x(0), 30, RED, f"{words} fails"))
                failed, begin = begin + seconds, begin + seconds + retry.delay_ms(attempt, 4) / 1000
                parts.append(line(f"M{time.x(failed):.1f} {y + 15}H{time.x(begin):.1f}", dashed=True))
                parts.append(text(time.x((failed + begin) / 2), y + 10, "waits"))
            parts.append(box(time.x(begin), y, time.x(seconds) - time.x(0), 30 if ordered else 26, colour, words))
            free_s = begin + seconds
        top += 56
    return Picture("Items of two order keys", 230, parts)


# --------------------------------------------------------------------------------------------- failures


def delays_of_retries() -> Picture:
    """The delays of the built-in policy, from the shortest to the longest by chance, on a scale of powers of ten."""
    policy = PolicyEntry()
    retry, attempts = policy.retry, policy.max_attempts
    assert retry is not None
    longest = [retry.model_copy(update={"jitter": 0}).delay_ms(attempt, 1) / 1000 for attempt in range(1, attempts)]
    shortest = [full * (1 - retry.jitter) for full in longest]
    left, right, bottom, tall = 70, 700, 250, 200

    def y(seconds: float) -> float:
        return bottom - tall * log10(seconds / 0.4) / log10(1_000 / 0.4)

    parts = [text(20, 24, "Delay after each failed attempt", anchor="start", bold=True)]
    for words, seconds in (("1 s", 1), ("10 s", 10), ("1 min", 60), ("15 min", 900)):
        parts += [line(f"M{left} {y(seconds):.1f}H{right}", dashed=True), text(62, y(seconds) + 5, words, anchor="end")]
    wide = (right - left) / len(longest)
    for at, (low, high) in enumerate(zip(shortest, longest, strict=True)):
        parts.append(box(left + wide * at + 3, y(high), wide - 6, y(low) - y(high), ORANGE))
        if at % 2 == 0:
            parts.append(text(left + wide * (at + 0.5), bottom + 20, str(at + 1)))
    hours = [f"{sum(delays) / 3600:.1f}" for delays in (shortest, longest)]
    last = f"After attempt {attempts} it is a dead letter: all delays together take {hours[0]} to {hours[1]} hours"
    return Picture("The delays of failed attempts", 312, [*parts, text(360, 298, last)])


# ------------------------------------------------------------------------------------------- architecture


def parts_of_a_cluster() -> Picture:
    """Clients, three hosts with the shards that balancing gives them, databases and ZooKeeper."""
    hosts = {"host A": 130, "host B": 310, "host C": 490}
    owners = balance(Situation(dict.fromkeys(range(1, 7), 1.0), {}, list(hosts)))
    wide, top = 130, 96
    parts = [box(40, 16, 580, 44, GREY, "producers, workers, the CLI, the console, push targets")]
    for name, middle in hosts.items():
        shards = ", ".join(str(shard) for shard, owner in owners.items() if owner == name)
        parts += [
            line(f"M{middle} 60V{top}", tip=True),
            box(middle - wide / 2, top, wide, 54, BLUE, name, f"shards {shards}"),
            line(f"M{middle} {top + 54}V196", tip=True),
        ]
        if middle < max(hosts.values()):
            parts.append(line(f"M{middle + wide / 2} {top + 27}h50", dashed=True))
    parts += [
        text(220, 82, "Thrift, TCP or TLS"),
        box(40, 196, 580, 54, GREEN, "MySQL or MariaDB servers", "a shard is a schema: items, leases, results"),
        text(220, 178, "one owner per shard"),
        box(590, top, 116, 54, ORANGE, "ZooKeeper", "hosts, owners"),
        line(f"M{490 + wide / 2} {top + 27}H590", dashed=True),
    ]
    return Picture("The parts of a cluster", 266, parts)


PICTURES: Mapping[str, Callable[[], Picture]] = {
    "states.svg": life_of_an_item,
    "order.svg": order_of_a_topic,
    "lease.svg": life_of_a_lease,
    "turns.svg": turns_of_tenants,
    "shares.svg": shares_of_tenants,
    "rate.svg": deliveries_at_a_rate,
    "slots.svg": jobs_in_slots,
    "order-keys.svg": items_in_order,
    "retries.svg": delays_of_retries,
    "cluster.svg": parts_of_a_cluster,
}


def main() -> int:
    stale = []
    for name, make in PICTURES.items():
        path, made = IMAGES / name, drawn(make())
        if not path.exists() or path.read_text() != made:
            stale.append(path.relative_to(ROOT))
            if "--check" not in sys.argv[1:]:
                path.parent.mkdir(exist_ok=True, parents=True)
                path.write_text(made)
    if stale and "--check" in sys.argv[1:]:
        print("not current; script/pictures.py writes them:", *stale, sep="\n  ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
