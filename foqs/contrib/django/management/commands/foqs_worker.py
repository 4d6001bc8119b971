"""`manage.py foqs_worker`: `foqs worker` for the tasks of a Django project."""

from __future__ import annotations

import inspect
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from foqs.client import FoqsError
from foqs.contrib.django.backend import ALIAS_VARIABLE, FoqsBackend
from foqs.contrib.django.interface import InvalidTaskBackend, task_backends
from foqs.extras import missing

try:
    from typer.models import OptionInfo

    from foqs.cli import logs
    from foqs.cli.worker import worker
except ModuleNotFoundError as error:
    what = f"the package {error.name}, which foqs_worker needs,"
    raise ModuleNotFoundError(missing(what, "django"), name=error.name) from error

_LEFT_OUT = ("app_dir", "hard_limit_ms")
"""Options of `foqs worker` without a meaning here: Django's tasks have no time limit."""


class Command(BaseCommand):
    help = (
        "Run the tasks of this project in several processes. At SIGTERM or Ctrl-C the worker takes no more, and waits "
        "for running tasks; a second time it interrupts them. Tasks that are interrupted run again."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default="default", help="The alias in TASKS. Default: default.")
        for name, info, kind, default in _options():
            flag = {"action": "store_true"} if kind is bool else {"type": _checked(info, kind), "metavar": info.metavar}
            text = str(info.help) + (f" Default: {default}." if default else "")
            text = text.replace("the topics of the tasks", "the QUEUES").replace("%", "%%")
            parser.add_argument(f"--{name.replace('_', '-')}", default=default, help=text, **flag)

    def handle(self, *args: Any, backend: str, **options: Any) -> None:
        try:
            logs.from_environment()
            found = task_backends[backend]
            if not isinstance(found, FoqsBackend):
                raise CommandError(f"TASKS[{backend!r}] is of {type(found).__name__}, and not of FoqsBackend")
            given = {name: options[name] for name, *_ in _options()}
            given["topics"] = given["topics"] or ",".join(sorted(found.queues)) or None
            connections.close_all()  # of the checks
            os.environ[ALIAS_VARIABLE] = backend
            worker("foqs.contrib.django.worker:app", app_dir=Path(sys.path[0]), **given)
        except (FoqsError, InvalidTaskBackend) as error:
            raise CommandError(str(error)) from None


def _options() -> Iterator[tuple[str, OptionInfo, type, Any]]:
    """Yield the options of `foqs worker`: the name, the declaration, the type and the default of each."""
    for name, parameter in inspect.signature(worker, eval_str=True).parameters.items():
        (info, *_), kind = getattr(parameter.annotation, "__metadata__", (None,)), parameter.annotation.__origin__
        if isinstance(info, OptionInfo) and name not in _LEFT_OUT:
            yield name, info, next(iter(get_args(kind)), kind), parameter.default


def _checked(info: OptionInfo, kind: type) -> Callable[[str], Any]:
    def check(text: str) -> Any:
        value = kind(text)
        if kind is int and not (info.min or 0) <= value <= (info.max or sys.maxsize):
            raise ArgumentTypeError(f"{text} is not in the range {info.min or 0} to {info.max or 'any'}")
        return value

    check.__name__ = kind.__name__
    return check
