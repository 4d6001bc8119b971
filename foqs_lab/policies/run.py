"""The scenarios, each on fresh servers, and a picture, from a run on a real host."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from foqs.client.items import ItemSpec
from foqs_lab.policies import fair, hooked, throttled
from foqs_lab.policies.stage import HOSTS, Consumers, Outcome, Stage, stage
from foqs_lab.servers import Kind

_TOPIC, _BATCH, _PACE_S = "picture", 10, 0.02
_ITEMS = 60_000
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 420, 60, 120, 60, 90
_COLOURS = {"red": "#d6604d", "green": "#4dac26", "blue": "#4393c3", "new": "#7b3294"}
_WIDE, _TALL = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
_INK, _GRID = "#1f2328", "#d0d7de"
_TITLE = "Deliveries of each tenant in a second"


class Step(NamedTuple):
    """What happens `at_s` after the begin: `text` says it on the picture."""

    at_s: float
    text: str


class Run(NamedTuple):
    """`rates[tenant][second]`: deliveries in that second."""

    rates: Mapping[str, Sequence[int]]
    steps: Sequence[Step]


STEPS = (
    Step(0, "red, green and blue with weights 1, 2 and 4"),
    Step(10, "new arrives with weight 4"),
    Step(20, "the weight of red becomes 4"),
    Step(30, "blue gets a throttle: 40 a second"),
)
_END_S = 40


def deliveries_over_time(stage: Stage) -> Run:
    for tenant, weight in {"red": 1, "green": 2, "blue": 4}.items():
        keys = ["blue-api"] if tenant == "blue" else None
        stage.fill(
            ItemSpec(_TOPIC, b"x", fairness_key=tenant, weight=weight, throttle_keys=keys) for _ in range(_ITEMS)
        )
    changes: dict[int, Callable[[], object]] = {
        10: lambda: stage.fill(ItemSpec(_TOPIC, b"x", fairness_key="new", weight=4) for _ in range(_ITEMS // 2)),
        20: lambda: stage.settings({"weight.red": "4"}),
        30: lambda: stage.settings({"throttle.blue-api": json.dumps({"per_second": 40, "burst": 40})}),
    }
    with Consumers(stage.clients, _TOPIC, _BATCH, pace_s=_PACE_S) as consumers:
        began_s = time.monotonic()
        for at_s, change in changes.items():
            time.sleep(max(0.0, began_s + at_s - time.monotonic()))
            change()
        time.sleep(max(0.0, began_s + _END_S - time.monotonic()))
    counts = Counter((one.item.fairness_key, int(one.at_s - began_s)) for one in consumers.delivered)
    return Run({tenant: [counts[tenant, second] for second in range(_END_S)] for tenant in _COLOURS}, STEPS)


def svg(measured: Run) -> str:
    """A line for each tenant; what happened is numbered, and written below."""
    high = max(max(rates) for rates in measured.rates.values()) or 1
    seconds = len(next(iter(measured.rates.values())))
    frame = _Frame(seconds, high)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="Helvetica, Arial, sans-serif" font-size="13" role="img">',
        f"<title>{_TITLE}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(16, 28, _TITLE, 'font-size="17" font-weight="bold"'),
        *frame.grid(),
    ]
    for number, step in enumerate(measured.steps):
        at = frame.x(step.at_s)
        lines.append(f'<path d="M{at:.1f} {_TOP}v{_TALL}" stroke="{_INK}" stroke-dasharray="3 4"/>')
        lines.append(_text(at + 4, _TOP - 6, str(number + 1), 'font-weight="bold"'))
        words = f"{number + 1}: {step.text}"
        lines.append(_text(_LEFT + number % 2 * _WIDE // 2, _HEIGHT - 36 + 18 * (number // 2), words))
    taken: list[float] = []
    for tenant, rates in sorted(measured.rates.items(), key=lambda one: -one[1][-1]):
        points = " ".join(f"{frame.x(at + 0.5):.1f},{frame.y(rate):.1f}" for at, rate in enumerate(rates))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{_COLOURS[tenant]}" stroke-width="2"/>')
        at = max(frame.y(rates[-1]) + 4, (taken[-1] if taken else 0) + 16)  # below the name before
        taken.append(at)
        lines.append(f'<text x="{_LEFT + _WIDE + 8}" y="{at:.1f}" fill="{_COLOURS[tenant]}">{escape(tenant)}</text>')
    return "\n".join([*lines, "</svg>", ""])


class _Frame(NamedTuple):
    seconds: int
    high: int

    def x(self, second: float) -> float:
        return _LEFT + _WIDE * second / self.seconds

    def y(self, rate: float) -> float:
        return _TOP + _TALL * (1 - rate / self.high)

    def grid(self) -> Iterator[str]:
        for rate in range(0, self.high + 1, max(10, self.high // 50 * 10)):
            yield f'<path d="M{_LEFT} {self.y(rate):.1f}h{_WIDE}" stroke="{_GRID}"/>'
            yield _text(_LEFT - 8, self.y(rate) + 4, str(rate), 'text-anchor="end"')
        for second in range(0, self.seconds + 1, 10):
            words = f"{second} s" if second else "0"
            yield _text(self.x(second), _TOP + _TALL + 18, words, 'text-anchor="middle"')


def _text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{_INK}" {style}>{escape(words)}</text>'


_ONE = HOSTS[:1]


class Scenario(NamedTuple):
    """`host`: settings of the hosts' section of that name. `relayed`: as for `stage`."""

    number: int
    run: Callable[[Stage], Outcome]
    hosts: tuple[str, ...] = _ONE
    shards: int = 4
    host: Mapping[str, object] = {}
    relayed: bool = False


SCENARIOS = (
    Scenario(1, fair.shares_on_one_host),
    Scenario(2, fair.shares_on_three_hosts, HOSTS, 6),
    Scenario(3, fair.late_item),
    Scenario(3, fair.late_item_on_three_hosts, HOSTS, 6),
    Scenario(4, fair.newcomers),
    Scenario(5, fair.change_of_weight),
    Scenario(6, fair.scopes),
    Scenario(7, fair.passing_keys, host={"lane_idle_ms": 2_000}),
    Scenario(8, fair.many_active_keys, shards=1),
    Scenario(8, fair.take_over, HOSTS, 6),
    Scenario(9, fair.cost_of_tenants),
    Scenario(10, throttled.free_items),
    Scenario(11, throttled.two_keys),
    Scenario(12, throttled.crossed_keys, HOSTS, 6),
    Scenario(13, throttled.killed_coordinator, HOSTS, 6),
    Scenario(14, throttled.many_keys, HOSTS, 6),
    Scenario(15, throttled.kills, HOSTS, 8),
    Scenario(16, throttled.ends_of_jobs),
    Scenario(17, throttled.workers, HOSTS, 6),
    Scenario(18, throttled.database_away, HOSTS, 6, relayed=True),
    Scenario(19, hooked.misbehaving),
    Scenario(20, hooked.cost_of_a_hook),
)
NUMBERS = sorted({one.number for one in SCENARIOS})


def measure(
    kind: Kind, folder: Path, numbers: Collection[int], share: float, say: Callable[[str], None]
) -> Iterator[Outcome]:
    """Run the scenarios with these numbers, each with `share` of its full size. Raises ServerUnavailable."""
    for at, one in enumerate(SCENARIOS):
        if one.number in numbers:
            say(f"scenario {one.number}: {one.run.__name__.replace('_', ' ')}")
            with stage(kind, folder / f"{at}", one.hosts, one.shards, share, one.host, relayed=one.relayed) as made:
                yield one.run(made)


def draw(kind: Kind, folder: Path) -> str:
    """Return the picture of a run as SVG. Raises ServerUnavailable."""
    with stage(kind, folder / "picture", _ONE, 4, 1.0) as made:
        return svg(deliveries_over_time(made))


def as_json(outcomes: Collection[Outcome]) -> list[dict[str, Any]]:
    return [{**one._asdict(), "figures": dict(one.figures)} for one in outcomes]


def show(outcomes: Collection[Outcome], console: Console) -> None:
    table = Table("#", "scenario", "bar", "measured", "met")
    for one in outcomes:
        figures = "\n".join(f"{name}: {_figure(value)}" for name, value in one.figures.items())
        table.add_row(str(one.number), one.title, one.bar, figures, "yes" if one.met else "no")
    console.print(table)


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"
