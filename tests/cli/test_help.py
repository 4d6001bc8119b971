"""`--help` of every command: a group, a sentence for each option and argument, and examples that are valid."""

import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from rich.markup import render
from typer.main import get_command
from typer.testing import CliRunner

from foqs.cli.main import OPERATE, QUEUE, RUN, app
from foqs_lab.cli import app as lab

GROUPS = {RUN, QUEUE, OPERATE}
WIDTH = 80


class Command(NamedTuple):
    words: tuple[str, ...]
    command: Any
    """Typer's own copy of Click has no public names for this."""


def below(command: Any, *words: str) -> Iterator[Command]:
    yield Command(words, command)
    for name, one in getattr(command, "commands", {}).items():
        yield from below(one, *words, name)


PROGRAMS = {"foqs": app, "foqs-lab": lab}
ROOTS = {name: get_command(program) for name, program in PROGRAMS.items()}
EVERY = [pytest.param(one, id=" ".join(one.words)) for name, root in ROOTS.items() for one in below(root, name)]


def help_of(one: Command) -> str:
    program, *words = one.words
    shown = CliRunner().invoke(PROGRAMS[program], [*words, "--help"], terminal_width=WIDTH, env={"COLUMNS": str(WIDTH)})
    assert shown.exit_code == 0, shown.output
    return shown.output


def examples_of(one: Command) -> list[str]:
    _, _, text = render(one.command.epilog or "").plain.partition("Examples:\n")
    return text.replace("\\\n", " ").splitlines()


def calls_in(line: str) -> Iterator[list[str]]:
    """Yield the words of each call of a program of foqs in a line of a shell."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    call: list[str] = []
    for word in [*words, "|"]:
        if set(word) <= set("|<>"):
            if call and call[0] in PROGRAMS:
                yield call
            call = []
        else:
            call.append(word)


def parse(arguments: list[str]) -> Any:
    """Return the command that `arguments` name. Raises an error of usage for options and values that it refuses."""
    program, *rest = arguments
    command, names = ROOTS[program], [program]
    while rest and rest[0] in getattr(command, "commands", {}):
        names.append(rest[0])
        command = command.commands[rest.pop(0)]
    command.make_context(" ".join(names), rest)
    return command


def check_named(line: str) -> None:
    """Parse each call of a line. A call without options and arguments, or a group alone, names a command."""
    for call in calls_in(line):
        if len(call) > 1 and any(word.startswith("-") for word in call):
            parse(call)
            continue
        command, words = ROOTS[call[0]], call[1:]
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert command is not ROOTS[call[0]], line
        if words:
            parse(call)


def test_every_command_is_in_a_group():
    panels = {name: one.rich_help_panel for name, one in ROOTS["foqs"].commands.items()}
    assert set(panels.values()) == GROUPS, panels
    shown = help_of(Command(("foqs",), ROOTS["foqs"]))
    headings = re.findall(r"^╭─ (\w+) ─", shown, re.M)
    assert headings == ["Options", RUN, QUEUE, OPERATE]


@pytest.mark.parametrize("one", EVERY)
def test_every_option_has_a_sentence(one):
    for parameter in one.command.params:
        text = parameter.help or ""
        assert re.fullmatch(r"[A-Z`].*\.", text, re.S), (parameter.name, text)
        assert len(text.split()) >= 4, (parameter.name, text)


@pytest.mark.parametrize("one", EVERY)
def test_the_first_sentence_is_short(one):
    """The list of commands shows this sentence."""
    first = (one.command.help or "").split("\n\n")[0]
    assert re.fullmatch(r"[A-Z][^.]*(\.\w[^.]*)*\.", first), first
    assert len(first) <= 100, first


@pytest.mark.parametrize("one", EVERY)
def test_every_command_has_examples(one):
    examples = examples_of(one)
    assert examples
    called = [parse(call) for line in examples for call in calls_in(line)]
    inside = {id(each.command) for each in below(one.command)}
    assert any(id(command) in inside for command in called), examples


@pytest.mark.parametrize("one", EVERY)
def test_examples_fit_a_terminal(one):
    lines = [line.rstrip() for line in help_of(one).splitlines()]
    shown = lines[lines.index(" Examples:") + 1 :]
    written = render(one.command.epilog).plain.partition("Examples:\n")[2].splitlines()
    assert [line for line in shown if line] == [f" {line}" for line in written]


@pytest.mark.parametrize("one", EVERY)
def test_flags_are_shown_without_a_type(one):
    shown = help_of(one)
    assert "<bool>" not in shown
    assert re.search(r"^│.*? --help +Show ", shown, re.M), shown


@pytest.mark.parametrize("one", EVERY)
def test_brackets_are_shown(one):
    """rich reads an unescaped [tls] as a style and drops it."""
    shown = " ".join(help_of(one).replace("│", " ").split())
    assert "[]" not in shown
    for section in re.findall(r"(?<!\[)\[[a-z]+\](?!\])", render(one.command.help or "").plain):
        assert section in shown


def test_an_example_with_a_wrong_option_is_found():
    with pytest.raises(Exception, match="No such option"):
        parse(["foqs", "serve", "--config", "foqs.toml", "--no-such-option"])
    with pytest.raises(Exception, match="Missing"):
        parse(["foqs", "dequeue"])
    assert list(calls_in("echo 'foqs | foqs' | foqs enqueue a < b")) == [["foqs", "enqueue", "a"]]
