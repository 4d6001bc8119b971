"""Runs scenarios, each on fresh servers, and shows their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from foqs_lab.policies import fair, hooked, limited, picture, scale, throttled
from foqs_lab.policies.stage import HOSTS, Outcome, Stage, stage
from foqs_lab.servers import Kind

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
    Scenario(7, scale.passing_keys, host={"lane_idle_ms": 2_000}),
    Scenario(8, scale.many_active_keys, shards=1),
    Scenario(8, scale.take_over, HOSTS, 6),
    Scenario(9, scale.cost_of_tenants),
    Scenario(10, throttled.free_items),
    Scenario(11, throttled.two_keys),
    Scenario(12, throttled.crossed_keys, HOSTS, 6),
    Scenario(13, throttled.killed_coordinator, HOSTS, 6),
    Scenario(14, throttled.many_keys, HOSTS, 6),
    Scenario(15, limited.kills, HOSTS, 8),
    Scenario(16, limited.ends_of_jobs),
    Scenario(17, limited.workers, HOSTS, 6),
    Scenario(18, limited.database_away, HOSTS, 6, relayed=True),
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
    """Return the picture of docs/fairness.md as SVG. Raises ServerUnavailable."""
    with stage(kind, folder / "picture", _ONE, 4, 1.0) as made:
        return picture.svg(picture.run(made))


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
