"""A command starts fast: it imports the modules that it needs, and `--help` imports none that does the work.

The tests count modules, because the time of a start depends on the machine.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.markup import escape
from typer.main import get_command

import foqs.cli
from foqs.cli.main import VERBS, app, escaped, registered
from tests.api.hosts import environment
from tests.api.hosts import foqs as run_foqs

HOST = ("aiohttp", "prometheus_client", "sqlalchemy", "kazoo", "uvloop", "pymysql", "lupa", "pyspark")
FOQS = ("admin", "api", "client", "config", "engine", "hooks", "peers", "rpc", "server", "store.sql", "zk")
WORK = (*HOST, "thriftpy2", "structlog", "asyncio", "ssl", *(f"foqs.{name}" for name in FOQS), "foqs_lab")
COMMANDS = ("foqs_lab.cli", "foqs_lab.bench.commands")
TABLES = ("rich.table", "rich.console")
MOST_MODULES = 280
"""Modules that `foqs VERB --help` may load beside those of Typer, which loads pydantic, and of rich."""
ONE_OF_EACH = {each.module: verb for verb, each in VERBS.items()}.values()
LIBRARIES = ("typer", "pydantic", "pydantic_core", "rich", "annotated_types", "typing_inspection", "typing_extensions")

RUN = """
import atexit, sys
from pathlib import Path
file, *sys.argv[1:] = sys.argv[1:]
before = set(sys.modules)
atexit.register(lambda: Path(file).write_text("\\n".join(sys.modules.keys() - before)))
from foqs.__main__ import main
main(MODULE)
"""

Loaded = Callable[..., set[str]]


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    """Return the modules that a command loads."""

    def run(*argv: str, status: int = 0, module: str = "foqs.cli.main") -> set[str]:
        found = tmp_path / "modules"
        done = subprocess.run(
            [sys.executable, "-c", RUN.replace("MODULE", repr(module)), found, *argv],
            capture_output=True, text=True, env=environment(), timeout=60, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        return set(found.read_text().split())

    return run


def of(modules: set[str], names: tuple[str, ...]) -> set[str]:
    return {one for one in modules if one.startswith(tuple(f"{name}." for name in names)) or one in names}


@pytest.mark.parametrize("verb", [(), *((verb,) for verb in ONE_OF_EACH)], ids=" ".join)
def test_help_loads_nothing_that_does_the_work(loaded: Loaded, verb: tuple[str, ...]) -> None:
    modules = loaded(*verb, "--help")
    assert of(modules, WORK) == set()
    own = modules - of(modules, LIBRARIES)
    assert len(own) < MOST_MODULES, sorted(own)


@pytest.mark.parametrize("words", [(), ("chaos",), ("bench",), ("bench", "cycle")], ids=" ".join)
def test_help_of_the_laboratory_loads_none_of_its_tools(loaded: Loaded, words: tuple[str, ...]) -> None:
    modules = loaded(*words, "--help", module="foqs_lab.cli")
    assert {one for one in modules if one.startswith("foqs_lab")} <= {*COMMANDS, "foqs_lab", "foqs_lab.bench"}
    assert of(modules, HOST) == set()


def test_the_list_of_commands_loads_none_of_them(loaded: Loaded) -> None:
    assert not loaded("--help") & {f"foqs.cli.{verb.module}" for verb in VERBS.values()}
    assert not of(loaded("--help"), ("pydantic",))


@pytest.mark.parametrize("argv", [("ack", "1"), ("topics",), ("enqueue", "t", "x"), ("topic", "pause", "t")])
def test_a_client_command_loads_nothing_of_a_host_and_no_tables(loaded: Loaded, argv: tuple[str, ...]) -> None:
    status = 2 if argv == ("ack", "1") else 1
    modules = loaded(*argv, *(() if status == 2 else ("--address", "127.0.0.1:1")), status=status)
    assert of(modules, (*HOST, "structlog", *TABLES)) == set()


def test_a_command_without_a_name_is_not_imported(loaded: Loaded) -> None:
    assert "foqs.cli.run" not in loaded("topicz", status=2)


@pytest.mark.parametrize("name", ["bench", "chaos"])
def test_a_command_of_the_laboratory_is_named(name: str) -> None:
    done = run_foqs(name, "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"foqs: foqs has no command {name}: it is `foqs-lab {name}`, of the same package\n"


@pytest.mark.parametrize("verb", VERBS)
def test_the_table_says_what_each_command_says(verb: str) -> None:
    """`foqs --help` shows the table; the command has the text."""
    command = get_command(app).commands[verb]  # type: ignore[attr-defined]
    assert (command.name, command.rich_help_panel) == (verb, VERBS[verb].group)
    assert (command.help or "").split("\n\n")[0] == escaped(VERBS[verb].text)


@pytest.mark.parametrize("module", sorted({verb.module for verb in VERBS.values()}))
def test_the_table_has_every_command_of_its_modules(module: str) -> None:
    assert registered(module).keys() == {name for name, verb in VERBS.items() if verb.module == module}


def test_the_table_has_every_module_that_registers_commands() -> None:
    code = (
        "import sys; from foqs.cli.main import VERBS, registered; [registered(verb.module) for verb in VERBS.values()]"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print(*sys.modules)"], capture_output=True, text=True, timeout=60
    )
    paths = Path(foqs.cli.__path__[0]).glob("*.py")
    found = {f"foqs.cli.{path.stem}" for path in paths if "\n@command(" in path.read_text()}
    assert len(found) > 10
    assert found <= set(done.stdout.split())


@pytest.mark.parametrize("text", ["[tls]", "\\[x] a [b", "[[shards]]", "[1]", "a\\\\[/b]", "foqs.toml [@x]"])
def test_brackets_are_escaped_as_rich_does(text: str) -> None:
    assert escaped(text) == escape(text)
