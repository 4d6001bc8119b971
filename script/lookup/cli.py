"""Each command of `foqs`: what its help says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from rich.markup import render
from typer.main import get_command

from foqs.cli.connection import CONNECTION
from foqs.cli.main import OPERATE, QUEUE, RUN, app
from script.lookup.markdown import anchor, cell, prose, table

_ABOUT = {
    RUN: "Processes that serve items, or work on them.",
    QUEUE: "Items and topics: put in, take out, look at, change.",
    OPERATE: "The service: its state, its settings, its databases and its secrets.",
}
_WORDS = {str: "text", int: "integer", float: "number", Path: "path"}
_HEAD = ("option", "value", "default", "meaning")


class Command(NamedTuple):
    """`text` is the first paragraph of its help, `more` the further ones."""

    name: str
    command: Any
    text: str
    more: str
    group: str

    @property
    def is_group(self) -> bool:
        return hasattr(self.command, "commands")


@cache
def every() -> tuple[Command, ...]:
    root = get_command(app)
    return tuple(
        one
        for group in (RUN, QUEUE, OPERATE)
        for name, command in root.commands.items()
        if command.rich_help_panel == group
        for one in _below(command, f"foqs {name}", group)
    )


def _below(command: Any, name: str, group: str) -> Iterator[Command]:
    text, _, more = render(command.help or "").plain.partition("\n\n")
    yield Command(name, command, text, more, group)
    for inside, one in getattr(command, "commands", {}).items():
        yield from _below(one, f"{name} {inside}", group)


def contents() -> str:
    parts = []
    for group, about in _ABOUT.items():
        rows = [
            (f"[`{one.name}`](#{anchor(one.name)})", cell(one.text))
            for one in every()
            if one.group == group and one.name.count(" ") == 1
        ]
        parts.append(f"**[{group}](#{anchor(group)})**: {about}\n\n{table(('command', 'use'), rows)}")
    return "\n\n".join(parts)


@cache
def _shared() -> Mapping[str, str]:
    """Return the row of each option of the connection, as most commands have it, by its name."""
    (enqueue,) = [one.command for one in every() if one.name == "foqs enqueue"]
    return {one.opts[0]: _row(one) for one in enqueue.params if _is_shared(one)}


def connection() -> str:
    return table(_HEAD, _shared().values())


def commands() -> str:
    parts, group = [], ""
    for one in every():
        if one.group != group:
            group = one.group
            parts.append(f"## {group}\n\n{_ABOUT[group]}")
        parts.append(_page(one))
    return "\n\n".join(parts)


def _page(one: Command) -> str:
    params = [each for each in one.command.params if not each.hidden]
    arguments = [each for each in params if _is_argument(each)]
    words = " ".join(_argument(each) for each in arguments)
    options = [each for each in params if not _is_argument(each)]
    shared = [each.opts[0] for each in options if _is_shared(each) and _shared().get(each.opts[0]) == _row(each)]
    own = [each for each in options if each.opts[0] not in shared]
    parts = [f"### {one.name}", prose(one.text)]
    if one.is_group:
        inside = [other for other in every() if other.name.rpartition(" ")[0] == one.name]
        rows = [(f"[`{other.name}`](#{anchor(other.name)})", cell(other.text)) for other in inside]
        parts.append(table(("command", "use"), rows))
    else:
        usage = " ".join(part for part in (one.name, "[OPTIONS]" if options else "", words) if part)
        parts += [f"```text\n{usage}\n```"]
    if one.more:
        parts.append(prose(one.more))
    if arguments or own:
        parts.append(table(_HEAD, map(_row, [*arguments, *own])))
    if shared:
        which = "the" if len(shared) == len(_shared()) else f"{', '.join(f'`{name}`' for name in shared)} of the"
        parts.append(f"It also has {which} [options of the connection](#options-of-the-connection).")
    if not one.is_group:
        parts.append(f"```sh\n{_examples(one.command)}\n```")
    return "\n\n".join(parts)


def _examples(command: Any) -> str:
    lines = render(command.epilog or "").plain.partition("Examples:\n")[2].splitlines()
    return "\n".join(line.removeprefix("  ") for line in lines)


def _is_argument(param: Any) -> bool:
    return param.param_type_name == "argument"


def _is_shared(param: Any) -> bool:
    return param.rich_help_panel == CONNECTION


def _argument(param: Any) -> str:
    word = param.name.upper() + ("..." if param.nargs == -1 else "")
    return word if param.required else f"[{word}]"


def _row(param: Any) -> tuple[str, ...]:
    if _is_argument(param):
        names = f"`{param.name.upper()}`"
    else:
        flags = [*param.opts, *param.secondary_opts]
        names = ", ".join(f"`{name}`" for name in flags)
    said = cell(render(param.help or "").plain)
    if param.envvar:
        said += f" Variable: `{param.envvar}`."
    return names, _value(param), _default(param), said


def _value(param: Any) -> str:
    if getattr(param, "is_flag", False):
        return ""
    kind = param.type_descriptor.annotation
    several = get_origin(kind) is list
    if several:
        (kind,) = get_args(kind)
    if get_origin(kind) is Literal:
        words = " or ".join(f"`{one}`" for one in get_args(kind))
    elif isinstance(kind, type) and issubclass(kind, Enum):
        words = " or ".join(f"`{one.value}`" for one in kind)
    elif param.metavar and not _is_argument(param):
        words = f"`{param.metavar}`"
    else:
        words = _WORDS[kind]
    return f"{words}{_range(param)}{'; may be repeated' if several else ''}"


def _range(param: Any) -> str:
    if param.min is None and param.max is None:
        return ""
    if param.max is None:
        return f", {_number(param.min)} or more"
    return f", {_number(param.min)} to {_number(param.max)}" if param.min is not None else f", up to {param.max}"


def _number(value: float) -> str:
    return f"{int(value)}" if value == int(value) else f"{value}"


def _default(param: Any) -> str:
    if param.required:
        return "required"
    value = param.default() if callable(param.default) else param.default
    if value in (None, False, "", [], ()):
        return ""
    if value is True:
        return "on"
    value = value.value if isinstance(value, Enum) else value
    return _number(value) if isinstance(value, int | float) else f"`{value}`"
