"""The entry of INSTALLED_APPS: the command, the system checks, and the import of all tasks."""

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class FoqsConfig(AppConfig):
    name = "foqs.contrib.django"
    label = "foqs_contrib_django"
    verbose_name = "foqs"

    def ready(self) -> None:
        """Import the module `tasks` of each installed app: no path that comes with an item imports anything."""
        autodiscover_modules("tasks")
