"""The settings of a Django project, for tests: the service is that of FOQS_ADDRESS and FOQS_NAMESPACE."""

import os

SECRET_KEY = "of tests"
USE_TZ = True
INSTALLED_APPS = ["foqs.contrib.django", "tests.contrib.shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}}
TASKS = {
    "default": {"BACKEND": "foqs.contrib.django.FoqsBackend", "QUEUES": ["default", "mail"], "OPTIONS": {}},
    "other": {"BACKEND": "foqs.contrib.django.FoqsBackend", "OPTIONS": {"namespace": "other"}},
}
if os.environ.get("SHOP_LOGGING"):
    LOGGING = {"version": 1}  # which disables the loggers that there are
