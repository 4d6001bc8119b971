"""A backend for Django's tasks, and `manage.py foqs_worker`, which runs them.

>>> TASKS = {"default": {"BACKEND": "foqs.contrib.django.FoqsBackend", "OPTIONS": {"namespace": "shop"}}}
>>> INSTALLED_APPS = ["foqs.contrib.django"]
"""

from foqs.extras import EXTRA_OF, missing

try:
    from foqs.contrib.django.backend import FoqsBackend
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    if package not in EXTRA_OF:
        raise
    what = f"the package {package}, which foqs.contrib.django needs,"
    raise ModuleNotFoundError(missing(what, "django"), name=error.name) from error

__all__ = ["FoqsBackend"]
