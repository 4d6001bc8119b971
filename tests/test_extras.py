"""What each extra adds: the base is the client library, and whatever lacks an extra names the line that installs it."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from foqs import extras
from foqs.cli.main import VERBS
from tests.api.hosts import environment
from tests.support.structure import imported

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE = ("thriftpy2", "tenacity")
MODULES = {
    "pymysql": "PyMySQL[rsa]",
    "cryptography": "PyMySQL[rsa]",
    "pydantic_core": "pydantic",
    "typing_extensions": "pydantic",
    "pydantic_settings": "pydantic-settings",
    "MySQLdb": "mysqlclient",
    "puresasl": "pure-sasl",
    "prometheus_client": "prometheus-client",
    "sqlalchemy": "SQLAlchemy",
    "yarl": "aiohttp",
    "jinja2": "Jinja2",
    "fast_depends": "fast-depends",
    "django": "Django",
    "django_tasks": "django-tasks",
    "asgiref": "Django",
    "opentelemetry": "opentelemetry-api",
    "py4j": "pyspark",
    "docker": "testcontainers",
    "requests": "testcontainers",
}
"""The requirement that brings a module, where their names differ."""
LAB_ALONE = {"psycopg", "celery", "dramatiq", "procrastinate"}  # script/rivals installs them
WITHOUT = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
from foqs.__main__ import main
main({module!r})
"""


def requirements(extra: str) -> list[str]:
    return [re.split(r"[<>=;]", one)[0] for one in PROJECT["optional-dependencies"][extra]]


@pytest.fixture
def installed_from(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the files of the metadata of foqs, and a Python at /env/bin/python."""

    def set_up(installer: str = "pip", **source: Any) -> None:
        files = {"INSTALLER": f"{installer}\n", "direct_url.json": json.dumps(source) if source else ""}
        monkeypatch.setattr(extras, "_metadata", files.__getitem__)
        monkeypatch.setattr(sys, "executable", "/env/bin/python")

    return set_up


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ({}, "/env/bin/python -m pip install 'foqs[cli]'"),
        ({"url": "file:///src/foqs", "dir_info": {}}, "/env/bin/python -m pip install '/src/foqs[cli]'"),
        (
            {"url": "file:///my%20src/foqs", "dir_info": {"editable": True}},
            "/env/bin/python -m pip install -e '/my src/foqs[cli]'",
        ),
        (
            {"url": "file:///dist/foqs-0.1.0-py3-none-any.whl", "archive_info": {}},
            "/env/bin/python -m pip install 'foqs[cli] @ file:///dist/foqs-0.1.0-py3-none-any.whl'",
        ),
        (
            {"url": "https://example.org/foqs.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            "/env/bin/python -m pip install 'foqs[cli] @ git+https://example.org/foqs.git@c0ffee'",
        ),
    ],
    ids=["index", "folder", "editable", "wheel", "repository"],
)
def test_the_line_installs_from_where_foqs_came(installed_from: Any, source: dict[str, Any], line: str) -> None:
    installed_from(**source)
    assert extras.install("cli") == line


def test_where_uv_installed_foqs_the_line_is_for_uv(installed_from: Any) -> None:
    installed_from("uv")
    assert extras.install("server") == "uv pip install --python /env/bin/python 'foqs[server]'"


def test_a_module_of_no_extra_is_a_bug() -> None:
    assert extras.missing_module(ModuleNotFoundError(name="foqs.nothing")) is None
    assert extras.missing_module(ModuleNotFoundError()) is None


def test_each_imported_package_is_of_the_base_or_of_an_extra() -> None:
    files = [*(ROOT / "foqs").rglob("*.py"), *(ROOT / "foqs_lab").rglob("*.py")]
    names = {name.partition(".")[0] for path in files for name in imported(path)}
    others = names - set(sys.stdlib_module_names) - {"foqs", "foqs_lab", *BASE}
    assert others - LAB_ALONE <= extras.EXTRA_OF.keys()


@pytest.mark.parametrize("module", sorted(extras.EXTRA_OF))
def test_the_extra_of_a_module_brings_it(module: str) -> None:
    wanted = requirements(extras.EXTRA_OF[module])
    assert {module, MODULES.get(module)} & set(wanted), wanted


def test_the_base_is_the_client_library() -> None:
    assert {re.split(r"[<>=;]", one)[0] for one in PROJECT["dependencies"]} == set(BASE)


def without(extra_or_all: set[str], *argv: str, module: str = "foqs.cli.main") -> subprocess.CompletedProcess[str]:
    blocked = {name for name, extra in extras.EXTRA_OF.items() if extra in extra_or_all}
    program = WITHOUT.format(blocked=blocked, module=module)
    return subprocess.run(
        [sys.executable, "-c", program, *argv], capture_output=True, text=True, timeout=60, env=environment()
    )


EVERY = set(extras.EXTRA_OF.values())


@pytest.mark.process
@pytest.mark.parametrize(
    "argv",
    [(), ("--version",), ("dev",), ("worker", "a:b"), ("enqueue", "a", "b"), ("outbox", "held")],
    ids=" ".join,
)
def test_the_base_alone_names_the_extra_of_the_command(argv: tuple[str, ...]) -> None:
    ran = without(EVERY, *argv)
    assert (ran.returncode, ran.stdout) == (1, "")
    extra = {"dev": "server", "worker": "tasks", "outbox": "cli,outbox"}.get("".join(argv[:1]), "cli")
    assert ran.stderr == f"foqs: {extras.missing('the package typer', extra)}\n"


@pytest.mark.process
@pytest.mark.parametrize(
    "argv",
    [
        ("dev",),
        ("serve", "--config", "foqs.toml"),
        ("config", "check"),
        ("config", "show"),
        ("cluster", "status", "--config", "foqs.toml"),
        ("hosts", "list", "--config", "foqs.toml"),
        ("shards", "list", "--config", "foqs.toml"),
        ("shards", "create", "--config", "foqs.toml"),
        ("doctor", "--config", "foqs.toml"),
        ("demo",),
        ("cluster", "up"),
    ],
    ids=" ".join,
)
def test_a_command_of_a_host_names_the_server(argv: tuple[str, ...]) -> None:
    ran = without(EVERY - {"cli"}, *argv)
    assert (ran.returncode, ran.stdout) == (1, ""), ran.stderr
    assert re.fullmatch(r"foqs: the package \w+ is not installed; the extra foqs\[server\] has it: .*\n", ran.stderr)


@pytest.mark.process
@pytest.mark.parametrize("argv", [("chaos",), ("bench", "cycle")], ids=" ".join)
def test_a_command_of_the_laboratory_names_its_extra(argv: tuple[str, ...]) -> None:
    ran = without(EVERY - {"cli"}, *argv, module="foqs_lab.cli")
    assert (ran.returncode, ran.stdout) == (1, ""), ran.stderr
    assert "the extra foqs[lab] has it" in ran.stderr


@pytest.mark.process
def test_the_commands_of_an_outbox_name_their_extras() -> None:
    ran = without(EVERY - {"cli"}, "outbox", "held", "sqlite://")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == f"foqs: {extras.missing('the package sqlalchemy', 'cli,outbox')}\n"


@pytest.mark.process
def test_push_needs_its_extra_alone() -> None:
    blocked = {name for name, extra in extras.EXTRA_OF.items() if extra not in ("cli", "push")}
    program = f"import sys; sys.modules.update(dict.fromkeys({blocked})); import foqs.push.pusher"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment())


@pytest.mark.process
def test_the_commands_of_push_need_its_extra_alone() -> None:
    ours = {"prometheus_client", "pydantic_settings"}
    others = {name for name, extra in extras.EXTRA_OF.items() if extra not in ("cli", "push")} - ours
    program = f"import sys; sys.modules.update(dict.fromkeys({others})); import foqs.cli.push_process as of; "
    program += "import foqs.cli.push_trial; of.read(None)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment())
    for module in (*sorted(ours), "aiohttp"):
        ran = subprocess.run(
            [sys.executable, "-c", WITHOUT.format(blocked={module}, module="foqs.cli.main"), "push", "run"],
            capture_output=True, text=True, timeout=60, env=environment(),
        )  # fmt: skip
        assert ran.stderr == f"foqs: {extras.missing(f'the package {module}', 'push')}\n"


def test_a_host_without_aiohttp_names_its_own_extra() -> None:
    error = ModuleNotFoundError(name="aiohttp")
    assert extras.missing_module(error, "dev") == extras.missing("the package aiohttp", "server")
    assert extras.missing_module(error) == extras.missing("the package aiohttp", "push")


@pytest.mark.process
@pytest.mark.parametrize("package", ["django", "django_tasks"])
def test_the_backend_of_django_names_its_extra(package: str) -> None:
    program = (
        f"import sys; sys.modules.update(dict.fromkeys([{package!r}, 'django.tasks']))\n"
        "try:\n    import foqs.contrib.django\nexcept ModuleNotFoundError as error:\n    print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment())
    what = f"the package {package}, which foqs.contrib.django needs,"
    assert ran.stdout.strip() == extras.missing(what, "django"), ran.stderr


def test_each_command_of_a_host_names_an_extra() -> None:
    commands = extras.EXTRA_OF_COMMAND.keys() - {"foqs-lab"}
    assert commands < VERBS.keys()
    assert {"run", "shards", "cluster", "spark"} <= {VERBS[one].module for one in commands}


@pytest.mark.process
def test_the_commands_of_a_queue_need_no_server_packages() -> None:
    for argv in (("topics",), ("enqueue", "a", "b"), ("topic", "list"), ("schedule", "list"), ("throttle", "list"),
                 ("settings", "show"), ("dead", "list", "a"), ("explain", "a"), ("auth", "token")):  # fmt: skip
        ran = without(EVERY - {"cli"}, *argv, *(() if argv[0] == "auth" else ("--address", "127.0.0.1:1")))
        assert "is not installed" not in ran.stderr, argv


@pytest.mark.process
def test_a_worker_needs_the_extra_of_tasks_alone() -> None:
    ran = without({"server", "tasks"}, "worker", "a:b", "--metrics-port", "0")
    assert "the package prometheus_client is not installed; the extra foqs[tasks] has it" in ran.stderr
    names = [name for name, extra in extras.EXTRA_OF.items() if extra == "server" and name != "prometheus_client"]
    program = f"import sys; sys.modules.update(dict.fromkeys({names})); "
    program += (
        "import foqs.cli.worker_child, foqs.cli.worker_metrics, foqs.cli.metrics_port, foqs.cli.worker_supervisor"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment())


@pytest.mark.process
def test_the_console_needs_its_extra_alone(tmp_path: Path) -> None:
    """It comes as far as the address, which is of no machine."""
    address = ("--port", "0", "--listen", "192.0.2.1")
    ran = without(EVERY - {"cli", "console"}, "console", *address)
    assert ran.stderr == "foqs: the console cannot listen on 192.0.2.1:0: Cannot assign requested address\n"
    file = tmp_path / "foqs.toml"
    file.write_text("")
    ran = without(EVERY - {"cli", "console"}, "console", *address, "--config", str(file))
    assert re.fullmatch(
        r"foqs: the package \w+, which --config needs, is not installed; .*console,server.*\n", ran.stderr
    )


@pytest.mark.process
def test_in_json_the_missing_extra_is_one_event() -> None:
    program = WITHOUT.format(blocked={"kazoo", "sqlalchemy", "uvloop"}, module="foqs.cli.main")
    ran = subprocess.run(
        [sys.executable, "-c", program, "dev"],
        capture_output=True, text=True, timeout=60, env=environment(FOQS_LOG__FORMAT="json"),
    )  # fmt: skip
    (line,) = ran.stderr.splitlines()
    assert "foqs[server]" in json.loads(line)["error"]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_sdist_and_the_wheel_install_and_serve() -> None:
    ran = subprocess.run([ROOT / "script" / "release", "--dry-run"], capture_output=True, text=True, timeout=840)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(re.findall(r"^foqs-.*: [2-6] packages beside foqs, \d+ KiB$", ran.stdout, re.M)) == 2
