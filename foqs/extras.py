"""The optional parts of the installation: which extra has which package, and the line that installs it."""

from __future__ import annotations

import json
import shlex
import sys
from urllib.parse import unquote

EXTRA_OF = {
    "typer": "cli",
    "rich": "cli",
    "structlog": "cli",
    "pydantic": "cli",
    "pydantic_core": "cli",
    "typing_extensions": "cli",
    "uvloop": "server",
    "sqlalchemy": "outbox",
    "pymysql": "server",
    "cryptography": "server",
    "pydantic_settings": "server",
    "kazoo": "server",
    "cronsim": "server",
    "tzdata": "server",
    "aiohttp": "push",
    "yarl": "push",
    "prometheus_client": "server",
    "MySQLdb": "mysqlclient",
    "puresasl": "sasl",
    "pyspark": "spark",
    "py4j": "spark",
    "pyarrow": "spark",
    "jinja2": "console",
    "starlette": "console",
    "uvicorn": "console",
    "lupa": "hooks",
    "fast_depends": "tasks",
    "msgpack": "codecs",
    "fsspec": "codecs",
    "django": "django",
    "django_tasks": "django",
    "asgiref": "django",
    "opentelemetry": "otel",
    "testcontainers": "lab",
    "docker": "lab",
    "requests": "lab",
}
"""The smallest extra that has each module."""
EXTRA_OF_COMMAND = {
    "dev": "server",
    "serve": "server",
    "demo": "server",
    "config": "server",
    "cluster": "server",
    "hosts": "server",
    "shards": "server",
    "doctor": "server",
    "outbox": "cli,outbox",
    "spark": "spark",
    "worker": "tasks",
    "console": "console",
    "push": "push",
    "foqs-lab": "lab",
}
"""What a command needs in all, so that a user installs once. The other commands need `cli`."""


def missing(what: str, extra: str) -> str:
    """Return the words for a package that is not installed."""
    return f"{what} is not installed; the extra foqs[{extra}] has it: {install(extra)}"


def missing_module(error: ModuleNotFoundError, command: str = "") -> str | None:
    """Return the words for an import that failed in a command; None if the module is of no extra: the error is a
    bug."""
    name = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(name)
    if extra in ("cli", "server", "outbox", "push"):
        extra = EXTRA_OF_COMMAND.get(command, extra)
    return None if extra is None else missing(f"the package {name}", extra)


def install(extra: str) -> str:
    """Return the command that adds the extra to this installation, from where foqs itself was installed."""
    return f"{_installer()} {_requirement(extra)}"


def _installer() -> str:
    python = shlex.quote(sys.executable)
    if _metadata("INSTALLER").strip() == "uv":  # which makes environments without pip
        return f"uv pip install --python {python}"
    return f"{python} -m pip install"


def _requirement(extra: str) -> str:
    """https://packaging.python.org/specifications/direct-url-data-structure/; without the file, an index had foqs."""
    source = json.loads(_metadata("direct_url.json") or "{}")
    url = str(source.get("url", ""))
    if "dir_info" in source:
        path = unquote(url.removeprefix("file://"))
        editable = "-e " if source["dir_info"].get("editable") else ""
        return editable + shlex.quote(f"{path}[{extra}]")
    if "vcs_info" in source:
        vcs = source["vcs_info"]
        return shlex.quote(f"foqs[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}")
    return shlex.quote(f"foqs[{extra}] @ {url}" if url else f"foqs[{extra}]")


def _metadata(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution("foqs").read_text(name) or ""
    except PackageNotFoundError:  # it runs from a folder on sys.path
        return ""
