"""The jobs of the console: how far they are, and their ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foqs.console.action import Action, Done, Form
from foqs.console.view import Page, View


async def load(view: View) -> Mapping[str, Any]:
    return {"jobs": view.jobs.of(view.session)}


async def _cancel(view: View, form: Form) -> Done:
    job = view.jobs.cancel(view.session, form.get("job", ""))
    return Done(f"Job {job.id} ends after its present step.")


async def _continue(view: View, form: Form) -> Done:
    job = view.jobs.resume(view.session, form.get("job", ""))
    return Done(f"Job {job.id} continues, with your rights.")


PAGE = Page("/jobs", "Jobs", "jobs.html", load, key="j", shown=lambda view: bool(view.jobs.of(view.session)))
ACTIONS = (Action("/jobs/cancel", _cancel), Action("/jobs/continue", _continue))
