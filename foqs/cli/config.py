"""`foqs config show|check|explain`: print a configuration, validate it, and describe its keys."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foqs.cli.errors import piped
from foqs.cli.help import OPERATE, command, commands
from foqs.errors import Invalid

if TYPE_CHECKING:
    from pydantic import BaseModel

    from foqs.config.fields import Key, Section
    from foqs.config.load import Loaded, Where

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


def register(app: typer.Typer) -> None:
    group = commands(
        "config",
        "Print, validate and explain the configuration.",
        "foqs config check --config foqs.toml",
        "foqs config explain server.port",
    )
    command(group, "foqs config show --config foqs.toml", "foqs config show --config foqs.toml --json")(show)
    command(group, "foqs config check --config foqs.toml")(check)
    command(group, "foqs config explain server.port", "foqs config explain limits")(explain)
    app.add_typer(group, rich_help_panel=OPERATE)


@piped
def show(
    config: FileOption = None, as_json: Annotated[bool, typer.Option("--json", help="The command prints JSON.")] = False
) -> None:
    """Print the configuration that a host would run with.

    The output is a foqs.toml with the source of each value. Secrets are masked.
    """
    from foqs.cli.serve import named
    from foqs.config.load import load_with_sources

    loaded = load_with_sources(config)
    loaded = loaded._replace(config=named(loaded.config))
    if as_json:
        print(json.dumps(_as_json(loaded.config, (), loaded), indent=2))
    else:
        print("\n".join(_as_toml(loaded)))


def check(config: FileOption = None) -> None:
    """Validate the configuration and report all its errors at once.

    The command opens no connection. `foqs doctor` checks databases, ports and certificates as well.
    """
    from foqs.config.load import load

    read = load(config)
    print(f"{'the environment' if config is None else config}: valid")
    if read.zookeeper is None and not read.shards:
        print("but it has neither [[shards]] nor [zookeeper]: `foqs serve` needs one of them")


@piped
def explain(
    key: KeyArgument = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The command prints the tables of docs/configuration.md.")
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


# ----------------------------------------------------------------------------------------------------- a configuration


def _as_toml(loaded: Loaded) -> Iterator[str]:
    for where, section, listed in _tables(loaded.config, ()):
        name = ".".join(part for part in where if isinstance(part, str))
        if section is None:
            yield f"# [{name}] is not set"
        else:
            yield f"[[{name}]]" if listed else f"[{name}]"
            yield from _lines(section, where, loaded)
        yield ""


def _tables(model: BaseModel, where: Where) -> Iterator[tuple[Where, Section | None, bool]]:
    """Yield every section below `model`, outer ones first, and whether it belongs to a list."""
    from foqs.config.fields import section_of

    for name, field in type(model).model_fields.items():
        section, many = section_of(field)
        if section is not None:
            value, at = getattr(model, name), (*where, name)
            for here, each in [((*at, n), one) for n, one in enumerate(value)] if many else [(at, value)]:
                yield here, each, many
                if each is not None:
                    yield from _tables(each, here)


def _lines(section: Section, where: Where, loaded: Loaded) -> Iterator[str]:
    """Yield the keys of one section, each with its source."""
    from foqs.config.fields import section_of, toml_value

    lines = []
    for name, field in type(section).model_fields.items():
        if section_of(field)[0] is None:
            value = getattr(section, name)
            key, shown, source = _shown(section, name, value, (*where, name), loaded)
            lines.append((f"# {key} is not set" if value is None else f"{key} = {toml_value(shown)}", source))
    width = max((len(line) for line, _ in lines), default=0)
    yield from (f"{line:{width}}  # {source}" for line, source in lines)


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


def _as_json(model: BaseModel, where: Where, loaded: Loaded) -> dict[str, Any]:
    """Return each key with its value and its source."""
    from foqs.config.fields import Section, section_of

    shown: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value, at = getattr(model, name), (*where, name)
        section, many = section_of(field)
        if section is not None and value is not None:
            shown[name] = (
                [_as_json(each, (*at, n), loaded) for n, each in enumerate(value)]
                if many
                else _as_json(value, at, loaded)
            )
        elif section is not None:
            shown[name] = None
        elif isinstance(model, Section):
            key, each, source = _shown(model, name, value, at, loaded)
            if isinstance(each, dict):  # sections that the user names
                each = {label: section.model_dump(exclude_none=True) for label, section in each.items()}
            shown[key] = {"value": each, "source": source}
    return shown


# -------------------------------------------------------------------------------------------------------------- a key


def _line(key: Key, beside: list[Key]) -> str:
    width = max(len(one.name) for one in beside)
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
