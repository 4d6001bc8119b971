"""The settings. In the folder of the checkout:

export DJANGO_SETTINGS_MODULE=examples.django_shop.settings
python -m django foqs_worker --processes 2
python -m django runserver
"""

SECRET_KEY = "of the example"
DEBUG = True
ROOT_URLCONF = "examples.django_shop.urls"
INSTALLED_APPS = ["foqs.contrib.django", "examples.django_shop"]
TASKS = {"default": {"BACKEND": "foqs.contrib.django.FoqsBackend", "QUEUES": ["default", "mail"]}}
