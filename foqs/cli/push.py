"""`foqs push`: items that processes send to HTTP endpoints.

The commands import what sends requests themselves, so that `foqs` starts fast.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foqs.bounds import DEFAULT_ADDRESS, MOST_PORT
from foqs.checks import printable as name_text
from foqs.cli.connection import CONNECTION, Address, Connection, TlsOption, TokenOption
from foqs.cli.interrupt import ends_at_once, run_on_loop
from foqs.cli.main import JsonOption, command, commands
from foqs.cli.terminal import Column, fail, in_table, json_text, listing, piped
from foqs.errors import Invalid
from foqs.policies.entries import PUSH

if TYPE_CHECKING:
    from foqs.config.schema import PushSection

_LONGEST_MS = 3_600_000
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="FOQS_CONFIG",
        help="The section `push` of this foqs.toml has the secrets, and the endpoints that are allowed in addition. "
        "Without it, the environment alone has them.",
    ),
]

app = typer.Typer()
push = commands(
    app,
    "push",
    "Send items to HTTP endpoints, as webhooks.",
    "foqs push run --config push.toml --ns shop",
    "foqs push try orders --config push.toml --ns shop",
)


@command(push, "foqs push run --config push.toml --ns shop", "foqs push run -c push.toml --ns shop --ns billing")
def run(
    config: ConfigOption = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "--namespace",
            "--ns",
            "-n",
            envvar="FOQS_NAMESPACE",
            rich_help_panel=CONNECTION,
            help="The targets of this namespace are served. Repeat the option for several. Default: default.",
        ),
    ] = None,
    grace_ms: Annotated[
        int,
        typer.Option(
            min=0, max=_LONGEST_MS, help="A stop waits this long for running requests. 0: it gives them up at once."
        ),
    ] = 25_000,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MOST_PORT,
            help="`/metrics` and `/healthz` are on this port; 0 picks one. Default: there is none.",
        ),
    ] = None,
    metrics_host: Annotated[
        str | None, typer.Option(help="The metrics port is on this address. Default: 127.0.0.1.")
    ] = None,
    address: Address = DEFAULT_ADDRESS,
    token: TokenOption = None,
    tls: TlsOption = None,
    until_input_ends: Annotated[
        bool, typer.Option("--until-input-ends", hidden=True, help="The process ends with its stdin.")
    ] = False,
) -> None:
    """Send the items of topics to the endpoints that the settings push.NAME name, until SIGTERM.

    Changes of the settings and of files of secrets are followed; SIGHUP reads the configuration again. Many such
    processes share the work. At SIGTERM or Ctrl-C it takes no more items, and waits for running requests; a second
    time, more than a second later, it gives them up. Their items come again, without an attempt counted.
    """
    with ends_at_once():
        from foqs.cli.push_process import Order, serve

        if metrics_host is not None and metrics_port is None:
            raise Invalid("--metrics-host needs --metrics-port: without it there are no metrics")
        serve(
            Order(
                config=config,
                namespaces=tuple(dict.fromkeys(namespace or ["default"])),
                address=address,
                token=token,
                tls=tls,
                grace_ms=grace_ms,
                metrics=None if metrics_port is None else (metrics_host or "127.0.0.1", metrics_port),
                until_input_ends=until_input_ends,
            )
        )


@command(
    push,
    "foqs push try orders --config push.toml --ns shop",
    "foqs push try orders --payload '<order/>' --content-type text/xml",
    name="try",
)
def try_(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The setting push.NAME has the endpoint.")],
    payload: Annotated[str, typer.Option(help="The test item has this payload.")] = '{"test": true}',
    content_type: Annotated[str, typer.Option(help="The test item has this header content-type.")] = "application/json",
    config: ConfigOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The command writes one JSON document on a terminal too.")
    ] = False,
    *,
    connection: Connection,
) -> None:
    """Send one test request to an endpoint, signed like any request, and show the reply.

    No item of the queue is sent. The exit status is 0 if the reply would ack an item.
    """
    with connection.client() as client:
        entries = client.settings(PUSH + name).entries
    if PUSH + name not in entries:
        fail(f"there is no setting {name_text(PUSH + name)}; `foqs push list` lists the targets")
    from foqs.cli.push_trial import trial

    found = run_on_loop(
        trial(connection.namespace, name, entries[PUSH + name], section(config), payload.encode(), content_type)
    )
    if in_table(as_json):
        print("\n".join(f"{key}: {name_text(str(value))}" for key, value in found.items()))
    else:
        print(json_text(found))
    if found["outcome"] != "ack":
        sys.stdout.flush()
        raise SystemExit(1)


@command(push, "foqs push list --ns shop", "foqs push list --json", name="list")
@piped
def list_(as_json: JsonOption = False, *, connection: Connection) -> None:
    """List the push targets of the namespace: a table on a terminal, else JSON lines with all fields."""
    with connection.client() as client:
        entries = client.settings(PUSH).entries
    rows = [_row(key.removeprefix(PUSH), entries[key]) for key in sorted(entries)]
    if rows or not in_table(as_json):
        listing(rows, _columns(any("error" in row for row in rows)), as_json, lambda row: row)
    else:
        print(f"namespace {name_text(connection.namespace)} has no push target")


def section(config: Path | None) -> PushSection:
    """Return the section of a push process. Raises Invalid."""
    from foqs.config.load import load

    return load(config).push


def _row(name: str, text: str) -> dict[str, Any]:
    """Return the fields of an entry with their defaults; `error` for one of a newer version of foqs."""
    from foqs.policies.push import parse_push

    try:
        return {"name": name, **parse_push(text).model_dump(mode="json")}
    except Invalid as error:
        return {"name": name, **_fields(text), "error": error.message}


def _fields(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _columns(errors: bool) -> list[Column[dict[str, Any]]]:
    def text(field: str) -> Column[dict[str, Any]]:
        return Column(field, lambda row: name_text(str(row.get(field, ""))) or None, "folded")

    columns: list[Column[dict[str, Any]]] = [
        text("name"),
        text("topic"),
        text("url"),
        Column("at a time", lambda row: str(row.get("concurrency", "")) or None, "number"),
        Column("signed by", lambda row: name_text(", ".join(map(str, row.get("secrets") or ()))) or None, "folded"),
    ]
    return [*columns, text("error")] if errors else columns
