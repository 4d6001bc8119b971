"""What each process of `manage.py foqs_worker` imports: the App of a backend, with the tasks of the project."""

import logging
import os

import django

django.setup()
for name, logger in logging.root.manager.loggerDict.items():
    # LOGGING without `disable_existing_loggers: False` disables the loggers of modules that were imported before.
    if name.partition(".")[0] == "foqs" and isinstance(logger, logging.Logger):
        logger.disabled = False

from foqs.client import Reject  # noqa: E402 - once Django is set up
from foqs.contrib.django.backend import ALIAS_VARIABLE  # noqa: E402
from foqs.contrib.django.interface import signals, task_backends  # noqa: E402


def _is_new(record: logging.LogRecord) -> bool:
    """Return False for Django's line about the last failure of a task: foqs has that, and says what happens next."""
    error = record.exc_info[1] if record.exc_info else None
    return error is None or isinstance(error, Reject)


signals.logger.addFilter(_is_new)

app = task_backends[os.environ[ALIAS_VARIABLE]].registered()
