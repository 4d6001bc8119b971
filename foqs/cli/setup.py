"""`foqs config|doctor|auth|version`: the configuration of an installation, its faults, and its credentials."""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foqs.checks import printable
from foqs.cli.connection import Connection
from foqs.cli.interrupt import run_on_loop
from foqs.cli.main import JsonOption, command, commands, installed
from foqs.cli.operators import ConfigOption, quietly
from foqs.cli.terminal import Column, in_table, piped, write_line
from foqs.cli.terminal import show as show_table
from foqs.cli.terminal import table as table_of
from foqs.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from foqs.config.fields import Key, Section
    from foqs.config.load import Loaded, Where
    from foqs.doctor.check import Check


FileOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="FOQS_CONFIG",
        help="The configuration is in this foqs.toml. Without it, the environment alone configures the host.",
    ),
]
KeyArgument = Annotated[
    str | None,
    typer.Argument(
        help="The command describes this section.key, or a section. Without it, the command lists all keys."
    ),
]


TIMEOUT_S = 3.0
TOKEN_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)

app = typer.Typer()
config_app = commands(
    app,
    "config",
    "Print, validate and explain the configuration.",
    "foqs config check --config foqs.toml",
    "foqs config explain server.port",
)
auth = commands(
    app,
    "auth",
    "Make the credentials of clients, and show their rights.",
    "foqs auth token billing --write billing.token >> principals.toml",
)


@command(app, "foqs version")
def version() -> None:
    """Print the version of foqs, as `foqs --version` does."""
    print(installed())


@command(config_app, "foqs config show --config foqs.toml", "foqs config show --config foqs.toml --json")
@piped
def show(
    config: FileOption = None, as_json: Annotated[bool, typer.Option("--json", help="The command prints JSON.")] = False
) -> None:
    """Print the configuration that a host would run with.

    The output is a foqs.toml with the source of each value. Secrets are masked.
    """
    from foqs.cli.run import named
    from foqs.config.load import load_with_sources

    loaded = load_with_sources(config)
    loaded = loaded._replace(config=named(loaded.config))
    if as_json:
        print(json.dumps(_as_json(loaded.config, (), loaded), indent=2))
    else:
        print("\n".join(_as_toml(loaded)))


@command(config_app, "foqs config check --config foqs.toml")
def check(config: FileOption = None) -> None:
    """Validate the configuration and report all its errors at once.

    The command opens no connection. `foqs doctor` checks databases, ports and certificates as well.
    """
    from foqs.config.load import load

    read = load(config)
    print(f"{'the environment' if config is None else config}: valid")
    if read.zookeeper is None and not read.shards:
        print("but it has neither [[shards]] nor [zookeeper]: `foqs serve` needs one of them")


@command(config_app, "foqs config explain server.port", "foqs config explain limits")
@piped
def explain(
    key: KeyArgument = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The command prints the tables of docs/reference/configuration.md.")
    ] = False,
) -> None:
    """Describe a configuration key.

    The description has the key's meaning, type, bounds and default, its environment variable, and whether SIGHUP
    changes it.
    """
    from foqs.config.fields import DELIMITER, FILE, PREFIX, keys
    from foqs.config.load import Config

    every = list(keys(Config))
    if key is None:
        print(_markdown(every) if markdown else "\n".join(_line(one, every) for one in every))
        return
    wanted = key.upper().removeprefix(PREFIX).replace(DELIMITER, ".").lower()
    found = [one for one in every if wanted in (one.name, one.secret and one.name + FILE)]
    below = [one for one in every if one.name.startswith(f"{wanted}.")]
    if found:
        print(_explained(found[0]))
    elif below:
        print("\n".join(_line(one, below) for one in below))
    else:
        names = [one.name for one in every]
        near = difflib.get_close_matches(wanted, names, n=3)
        near += [name for name in names if name.endswith(f".{wanted.rpartition('.')[2]}") and name not in near]
        hint = f"; did you mean {' or '.join(near)}?" if near else "; `foqs config explain` lists all keys"
        raise Invalid(f"{key}: there is no such key{hint}")


def _as_toml(loaded: Loaded) -> Iterator[str]:
    yield from _sections(_as_json(loaded.config, (), loaded), "")


def _sections(shown: dict[str, Any], prefix: str) -> Iterator[str]:
    """Yield the lines of all sections, outer ones first."""
    for name, value in shown.items():
        if value is None:
            yield from (f"# [{prefix}{name}] is not set", "")
        elif not _is_key(value):
            for section in value if isinstance(value, list) else [value]:
                yield f"[[{prefix}{name}]]" if isinstance(value, list) else f"[{prefix}{name}]"
                yield from _lines(section)
                yield ""
                yield from _sections(section, f"{prefix}{name}.")


def _is_key(value: object) -> bool:
    """Return True for the value of a key, False for a section or a list of sections."""
    return isinstance(value, dict) and value.keys() == {"value", "source"}


def _lines(section: dict[str, Any]) -> Iterator[str]:
    """Yield the keys of one section, each with its source."""
    from foqs.config.fields import toml_value

    keys = {name: each for name, each in section.items() if _is_key(each)}
    lines = [
        f"# {name} is not set" if each["value"] is None else f"{name} = {toml_value(each['value'])}"
        for name, each in keys.items()
    ]
    width = max(map(len, lines), default=0)
    yield from (f"{line:{width}}  # {each['source']}" for line, each in zip(lines, keys.values(), strict=True))


def _as_json(model: BaseModel, where: Where, loaded: Loaded) -> dict[str, Any]:
    """Return each key with its value and its source, and the sections below; None for a section that is not set."""
    from foqs.config.fields import Section, section_of

    shown: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value, at = getattr(model, name), (*where, name)
        section, many = section_of(field)
        if section is None:
            if isinstance(model, Section):
                key, each, source = _shown(model, name, value, at, loaded)
                if isinstance(each, dict):  # sections or paths that the user names
                    each = {
                        label: one.model_dump(exclude_none=True) if isinstance(one, Section) else str(one)
                        for label, one in each.items()
                    }
                shown[key] = {"value": each, "source": source}
        elif many:
            shown[name] = [_as_json(each, (*at, n), loaded) for n, each in enumerate(value)]
        else:
            shown[name] = value and _as_json(value, at, loaded)
    return shown


def _shown(section: Section, name: str, value: Any, where: Where, loaded: Loaded) -> tuple[str, Any, str]:
    """Return (key, value, source); a secret from a file shows the path, any other secret a mask."""
    from foqs.config.fields import FILE, secret_mark

    source, secret = loaded.source_of(where), secret_mark(type(section).model_fields[name])
    called = "default" if source is None else source.name
    if secret is None or value is None:
        return name, value, called
    if source is not None and where in source.files:
        return name + FILE, str(source.files[where].absolute()), called
    return name, secret.masked(value), called


def _line(key: Key, listed: list[Key]) -> str:
    width = max(len(one.name) for one in listed)
    return f"{key.name:{width}}  {key.description}"


def _explained(key: Key) -> str:
    from foqs.config.fields import FILE, env_name

    variable = f"{key.env} (JSON: the whole list)" if key.listed else key.env
    lines = [
        key.name,
        f"  {key.description}",
        f"  type:        {key.type}",
        f"  default:     {key.default}",
        f"  environment: {variable}",
        f"  changed by:  {'SIGHUP' if key.live else 'a restart'}",
    ]
    if key.secret is not None:
        file_variable = "" if key.listed else f", {env_name(key.name + FILE)}"
        lines.append(f"  secret:      never shown; {key.name}{FILE}{file_variable} names a file to read it from")
    return "\n".join(lines)


def _markdown(every: list[Key]) -> str:
    """Return a table for each section."""
    parts = []
    for name in dict.fromkeys(key.name.rpartition(".")[0] for key in every):
        inside = [key for key in every if key.name.rpartition(".")[0] == name]
        head = f"[[{name}]]" if inside[0].listed else f"[{name}]"
        lines = [
            f"### `{head}`",
            " ".join((inside[0].section.__doc__ or "").split()),
            "",
            "| key | meaning | type | default | changed by |",
            "| --- | --- | --- | --- | --- |",
            *map(_row, inside),
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _row(key: Key) -> str:
    from foqs.config.fields import FILE, UNSET

    name = key.name.rpartition(".")[2]
    names = f"`{name}`, `{name}{FILE}`" if key.secret is not None else f"`{name}`"
    default = key.default if key.default in UNSET else f"`{key.default}`"
    cells = (names, key.description, key.type, default, "SIGHUP" if key.live else "restart")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


@command(app, "foqs doctor --config foqs.toml", "foqs doctor --config foqs.toml --processes 4 --json")
@piped
def doctor(
    config: ConfigOption,
    as_json: Annotated[bool, typer.Option("--json", help="The command prints one JSON document.")] = False,
    processes: Annotated[
        int,
        typer.Option(min=0, max=64, help="The command also checks the ports of this many processes of `foqs serve`."),
    ] = 0,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=3_600, help="The command waits this many seconds for each answer.")
    ] = TIMEOUT_S,
) -> None:
    """Find faults of a setup, and name their remedies.

    The command checks configuration, databases, ZooKeeper, ports and certificates. It changes nothing, and can run
    while hosts serve. It exits with 1 if it finds a fault; warnings alone leave the status at 0.
    """
    from foqs.doctor.check import Verdict, worst
    from foqs.doctor.examine import examine

    quietly()
    checks = run_on_loop(examine(config, range(1, processes + 1), timeout))
    if as_json:
        print(json.dumps(document(checks), indent=2))
    else:
        _show(checks)
    if worst(checks) is Verdict.WRONG:
        sys.stdout.flush()
        sys.exit(1)


def document(checks: Sequence[Check]) -> dict[str, Any]:
    """Return the checks as JSON; `verdict`, of the whole and of each check, is ok, not checked, warning or wrong."""
    from foqs.doctor.check import worst

    rows = [
        {
            "group": check.group.value,
            "name": check.name,
            "verdict": check.verdict.value,
            "found": check.found,
            "mend": check.mend or None,
        }
        for check in checks
    ]
    return {"verdict": worst(checks).value, "checks": rows}


def _show(checks: Sequence[Check]) -> None:
    """Print a table on a terminal, else a line for each check, for `grep`."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from foqs.checks import printable as name
    from foqs.doctor.check import Group, Verdict

    console = Console(markup=False, highlight=False, emoji=False)
    counts = {verdict: sum(check.verdict is verdict for check in checks) for verdict in reversed(Verdict)}
    summary = ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
    if not console.is_terminal:
        for check in checks:
            mend = f" -> {check.mend}" if check.mend else ""
            print(f"{check.verdict.value}: {check.group.value}: {name(check.name)}: {name(check.found)}{mend}")
        print(summary)
        return
    styles = {Verdict.OK: "green", Verdict.SKIPPED: "dim", Verdict.WARNING: "yellow", Verdict.WRONG: "bold red"}
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=32)
    table.add_column(overflow="fold")
    for group in Group:
        rows = [check for check in checks if check.group is group]
        if rows:
            table.add_row(Text(group.value, "bold"))
        for check in rows:
            found = Text(name(check.found))
            if check.mend:
                found.append(f"\n-> {check.mend}", "italic")
            table.add_row(Text(check.verdict.value, styles[check.verdict]), name(check.name), found)
    console.print(table)
    console.print(summary)


@command(
    auth,
    "foqs auth token billing",
    "foqs auth token billing --write billing.token >> principals.toml",
)
def token(
    name: Annotated[str, typer.Argument(help="The principal has this name: letters, digits, - and _.")],
    write: Annotated[
        Path | None,
        typer.Option(
            "--write",
            metavar="FILE",
            help="The command writes the token to this new file, which only its owner can read, and not to stdout.",
        ),
    ] = None,
) -> None:
    """Make a token, and its entry for the hosts' principals file.

    Keep the token: the entry has its SHA-256 only. Without --write, the first line of stdout is the token.
    """
    if not _NAME.fullmatch(name):
        raise Invalid(f"the name {name!r} is not valid: use 1 to 128 letters, digits, - and _")
    made = token_urlsafe(TOKEN_BYTES)
    if write is None:
        print(made)
    else:
        _write(write, made)
    print(f'[principals.{name}]\ntoken_sha256 = "{sha256(made.encode()).hexdigest()}"')
    print('rights = { "namespace" = ["produce", "consume"] }  # and "admin"; "eu-*" and "*" are namespaces too')


def _write(path: Path, made: str) -> None:
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w") as file:
            file.write(made + "\n")
    except OSError as error:
        raise Invalid(f"--write {path}: {error.strerror}") from None


@command(auth, "foqs auth whoami", "foqs auth whoami --token @billing.token --json")
@piped
def whoami(as_json: JsonOption = False, *, connection: Connection) -> None:
    """Show as which principal the server knows this caller, and its rights.

    The output is a table on a terminal, else a line of JSON: rights by namespace, as the hosts' principals file has
    them. `eu-*` are all namespaces with the prefix, `*` are all. Where authentication is off, both fields are null:
    every caller may do everything.
    """
    with connection.client() as client:
        info = client.server_info()
    if not in_table(as_json):
        write_line({"principal": info.principal, "rights": info.rights})
    elif info.rights is None:
        print("authentication is off: every caller may do everything")
    else:
        print(f"principal {printable(info.principal or '')}{'' if info.rights else ' has no right'}")
        columns: list[Column[tuple[str, tuple[str, ...]]]] = [
            Column("namespace", lambda row: printable(row[0]), "folded"),
            Column("rights", lambda row: ", ".join(row[1])),
        ]
        if info.rights:
            show_table(table_of(sorted(info.rights.items()), columns))
