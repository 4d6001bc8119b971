"""`foqs shards settings`: compare, print and remove the copies of settings in the shards' databases."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from foqs.cli.help import command
from foqs.cli.operators import ClusterOptions, YesOption, confirm, copies_of, look, remove_copies
from foqs.cli.shards import DATABASES, app, shard_urls
from foqs.cli.terminal import fail, json_text
from foqs.errors import FoqsError, Invalid
from foqs.ids import MAX_SHARD
from foqs.store.protocol import StoreError, explained

if TYPE_CHECKING:
    from foqs.policies.settings import Settings
    from foqs.store.maintenance import Kept

CLUSTER = "the cluster"


def register(_parent: typer.Typer) -> None:
    command(
        app,
        "foqs shards settings --config foqs.toml",
        "foqs shards settings 2 --export --ns shop -c foqs.toml",
        "foqs shards settings 2 --discard --ns shop -c foqs.toml",
        name="settings",
        group=DATABASES,
    )(settings)


def settings(
    cluster: ClusterOptions,
    shard: Annotated[
        int | None,
        typer.Argument(
            metavar="ID", min=1, max=MAX_SHARD, help="The command looks at this shard. Default: at all shards."
        ),
    ] = None,
    ns: Annotated[
        str | None, typer.Option(help="The command looks at this namespace. Default: at all namespaces.")
    ] = None,
    export: Annotated[
        bool,
        typer.Option("--export", help="The command prints the copies of one shard, as `foqs settings export`."),
    ] = False,
    discard: Annotated[
        bool, typer.Option("--discard", help="The command removes the copies of one shard, after a question.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Compare the copies of settings in the shards' databases.

    The command names the copies that are older or newer than those of the cluster (without a cluster: than the newest
    copy), and those that were made apart from them. A host serves no shard with such a copy. The command exits with 1
    if it finds one.
    """
    if (export or discard) and shard is None:
        raise Invalid("--export and --discard need the number of one shard: give it as the argument")
    if export and discard:
        raise Invalid("--export prints copies and --discard removes them: give one of the two")
    places = _places(cluster, shard)
    if not export and not discard:
        _compare(cluster, places, ns)
        return
    ((number, url),) = places
    kept = {copy.ns: copy for copy in copies_of(_read(number, url)) if ns in (None, copy.ns)}
    if not kept:
        raise Invalid(f"shard {number} keeps no settings{'' if ns is None else f' of namespace {ns}'}")
    if export:
        for copy in kept.values():
            document = {"namespace": copy.ns, "version": copy.version, "entries": copy.entries}
            print(json_text(document, indent=2, sort_keys=True))
        return
    confirm(f"Remove the settings of {', '.join(sorted(kept))} from the database of shard {number}?", yes=yes)
    remove_copies(url, number, kept)
    for name in sorted(kept):
        print(f"shard {number}: the settings of {name} (version {kept[name].version}) are removed")


def _places(cluster: ClusterOptions, shard: int | None) -> list[tuple[int, str]]:
    places = shard_urls(cluster)
    if shard is None:
        return places
    if not (found := [(number, url) for number, url in places if number == shard]):
        raise Invalid(f"there is no shard {shard}: it is one of {', '.join(str(number) for number, _ in places)}")
    return found


def _read(number: int, url: str) -> Kept:
    from foqs.store.maintenance import read_kept

    try:
        return read_kept(url, number)
    except StoreError as error:
        fail(f"shard {number}: {explained(error)}")


def _compare(cluster: ClusterOptions, places: list[tuple[int, str]], ns: str | None) -> None:
    from foqs.config.load import load
    from foqs.policies.settings import Standing, standing

    config = load(cluster.config)
    known: dict[str, tuple[str, Settings]] = {}
    if config.zookeeper is not None:
        facts = look(config.zookeeper, cluster.connect_timeout)
        known = {name: (CLUSTER, found) for name, found in facts.settings.items()}
    found = [(number, copy) for number, copy in _copies(places) if ns in (None, copy.ns)]
    if config.zookeeper is None:
        for number, copy in sorted(found, key=lambda one: -one[1].version):
            known.setdefault(copy.ns, (f"shard {number}", copy))
    apart = False
    for number, copy in found:
        place, other = known.get(copy.ns, (CLUSTER, None))
        where = f"shard {number}: {copy.ns} version {copy.version}"
        if other is None:
            print(f"{where}, which {place} does not have")
        elif place == f"shard {number}":
            print(f"{where}, the newest")
        else:
            judged = standing(copy, other)
            apart |= judged is Standing.FOREIGN
            word = {Standing.SAME: "the same as", Standing.OLDER: "older than", Standing.NEWER: "newer than"}
            print(f"{where}, {word.get(judged, 'made apart from')} version {other.version} of {place}")
    if not found:
        print("no shard keeps settings")
    if apart:
        sys.exit(1)


def _copies(places: list[tuple[int, str]]) -> Iterator[tuple[int, Settings]]:
    """Yield the copies of each shard whose database answers, and report each other one."""
    from foqs.store.maintenance import read_kept

    for number, url in places:
        try:
            for copy in copies_of(read_kept(url, number)):
                yield number, copy
        except StoreError as error:
            print(f"foqs: shard {number}: {explained(error)}", file=sys.stderr)
        except FoqsError as error:
            print(f"foqs: shard {number}: {error.message}", file=sys.stderr)
