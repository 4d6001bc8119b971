"""Django's interface of tasks: that of Django 6, or of the package django-tasks for Django 5.2."""

try:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus, checks, signals, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
    from django.utils.json import normalize_json
except ModuleNotFoundError as error:
    if error.name != "django.tasks":
        raise
    from django_tasks import TaskContext, TaskResult, TaskResultStatus, checks, signals, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.utils import normalize_json

__all__ = [
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "checks",
    "normalize_json",
    "signals",
    "task_backends",
]
