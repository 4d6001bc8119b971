"""A Django project, with the tasks of Django 6 or of django-tasks, and its backend on the service of `foqs.testing`."""

from collections.abc import Callable, Iterator
from typing import Any

import django
import pytest

from foqs.testing import Server
from pytest_foqs import foqs_dev, foqs_server
from tests.contrib import settings

__all__ = ["foqs_dev", "foqs_server"]

with pytest.MonkeyPatch.context() as patch:  # processes that other tests start have projects of their own
    patch.setenv("DJANGO_SETTINGS_MODULE", settings.__name__)
    django.setup()


@pytest.fixture(scope="session", autouse=True)
def database(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Have each thread open the database in a folder of the tests."""
    from django.db import connections

    connections.settings["default"]["NAME"] = str(tmp_path_factory.mktemp("database") / "shop.sqlite3")


@pytest.fixture
def configured() -> Iterator[Callable[..., Any]]:
    """`configured(server, QUEUES=..., keep=..., ...)` returns the backend of the project with these OPTIONS."""
    from django.test.utils import override_settings

    from foqs.contrib.django.interface import task_backends

    patches = []

    def configure(server: Server, queues: list[str] | None = None, **options: Any) -> Any:
        own = {"address": server.address, "namespace": "shop", **options}
        tasks = {**settings.TASKS, "default": {**settings.TASKS["default"], "OPTIONS": own}}
        if queues is not None:
            tasks["default"]["QUEUES"] = queues
        patches.append(override_settings(TASKS=tasks))
        patches[-1].enable()
        return task_backends["default"]

    yield configure
    for patch in reversed(patches):
        patch.disable()


@pytest.fixture
def backend(foqs_server: Server, configured: Callable[..., Any]) -> Any:
    return configured(foqs_server)


@pytest.fixture
def run(foqs_server: Server, backend: Any) -> Callable[..., int]:
    """`run(hours=1)` runs the tasks that are ready that much later, and returns the number of runs."""

    def run(**later: int) -> int:
        foqs_server.advance(**later)
        return backend.worker(wait_ms=0).run_until_empty()

    return run
