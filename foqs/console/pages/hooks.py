"""The scripts of a namespace's hooks: the policies that name them, their calls, their source, and tries on a sample."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from foqs.checks import printable
from foqs.client import (
    Conflict,
    FailureCause,
    FoqsError,
    Forbidden,
    HookStats,
    Invalid,
    ItemSpec,
    NotFound,
    Tried,
    Unauthenticated,
)
from foqs.client.settings_types import TOPIC, Changes
from foqs.console.action import Action, Done, Form
from foqs.console.fields import whole
from foqs.console.marks import check_mark, mark_of, said_of
from foqs.console.view import Page, View, path_of

SCRIPT = "script."
HOOKS = ("on_enqueue", "on_failure")
MOST_ASKED = 10
"""Topics whose calls are asked for. Each is a request to all hosts."""
LOOKED_AT = 200
"""Topics with items that are looked at, where a policy of a `prefix*` names a script."""
PAGE_SCRIPTS = 200
CAUSES = {cause.name.lower(): cause for cause in (FailureCause.FAILED, FailureCause.EXPIRED, FailureCause.REJECTED)}
SAMPLE_TOPIC = "sample"
SET_BY_SCRIPTS = ("fairness_key", "weight", "throttle_keys", "priority", "delay_ms", "deliver_after_ms", "ttl_ms",
                  "expires_at_ms")  # fmt: skip
"""Fields of an item that a script of enqueues may set."""


class Named(NamedTuple):
    """A policy that names a script for a hook. `topic` may be a `prefix*`."""

    topic: str
    hook: str
    script: str


class Calls(NamedTuple):
    """The hooks of a topic. `missing`: hosts whose calls are not counted."""

    topic: str
    hooks: tuple[HookStats, ...]
    missing: tuple[str, ...]


async def load(view: View) -> Mapping[str, Any]:
    topic = view.asked("topic")
    scripts, policies = await _entries(view)
    named = [*_named(policies)]
    if topic:
        asked, all_topics, partly = [topic], 1, False
    else:
        asked, all_topics, partly = await _topics(view, policies, None)
    names = sorted(name.removeprefix(SCRIPT) for name in scripts.entries)
    rows = [
        {
            "name": name,
            "bytes": len(scripts.entries[SCRIPT + name].encode()),
            "stamp": scripts.stamps.get(SCRIPT + name),
            "named": [one for one in named if one.script == name],
        }
        for name in names[:PAGE_SCRIPTS]
    ]
    return {
        "topic": topic, "scripts": rows, "all_scripts": len(names), "calls": await _calls(view, asked),
        "all_topics": all_topics, "partly": partly, "looked_at": LOOKED_AT, "script_url": _url(view),
    }  # fmt: skip


async def load_one(view: View) -> Mapping[str, Any]:
    script = view.named("script")
    if not script:
        raise NotFound("the address names no script: the page Hooks lists them")
    return await _shown(view, script)


async def _shown(
    view: View,
    script: str,
    sent: Form | None = None,
    error: FoqsError | None = None,
    tried: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the values of the page about a script. `sent`: the form as the user sent it, with its error, or with what
    a try gave. After a conflict the form has the mark of the stored entry, so that it may replace it."""
    scripts, policies = await _entries(view)
    stored = scripts.entries.get(SCRIPT + script)
    named = [one for one in _named(policies) if one.script == script]
    asked, all_topics, partly = await _topics(view, policies, script)
    calls = [
        one._replace(hooks=tuple(hook for hook in one.hooks if hook.script == script))
        for one in await _calls(view, asked)
    ]
    topic = next((one.topic for one in named if not one.topic.endswith("*")), SAMPLE_TOPIC)
    form = {
        "source": stored or "", "hook": _hook_in(stored or ""), "topic": topic, "payload": "", "headers": "",
        "fairness_key": "", "attempt": "1", "cause": "failed", "reason": "", "mark": mark_of(stored), **(sent or {}),
    }  # fmt: skip
    if isinstance(error, Conflict):
        form["mark"] = mark_of(stored)
    return {
        "script": script, "stored": stored, "stamp": scripts.stamps.get(SCRIPT + script), "named": named, "form": form,
        "error": error, "tried": tried, "calls": calls, "all_topics": all_topics, "partly": partly,
        "hooks": HOOKS, "causes": CAUSES, "script_url": _url(view), "looked_at": LOOKED_AT,
        "status": 200 if error is None else 400,
    }  # fmt: skip


def _url(view: View) -> Any:
    return lambda name: view.url(path_of("/hooks", "script", name))


# ------------------------------------------------------------------------------------------ policies that name a script


async def _entries(view: View) -> tuple[Any, dict[str, dict[str, Any]]]:
    """Return the settings of scripts, and the policies by topic or `prefix*`."""
    scripts, policies = await asyncio.gather(view.client.settings(SCRIPT), view.client.settings(TOPIC))
    return scripts, {name.removeprefix(TOPIC): json.loads(text) for name, text in policies.entries.items()}


def _named(policies: Mapping[str, Mapping[str, Any]]) -> Iterator[Named]:
    for topic in sorted(policies):
        hooks = policies[topic].get("hooks") or {}
        for hook in HOOKS:
            if hooks.get(hook):
                yield Named(topic, hook, hooks[hook])


def hooks_of(policies: Mapping[str, Mapping[str, Any]], topic: str) -> Mapping[str, Any]:
    """Return the field `hooks` of a topic's policy: of its own entry, else of the longest prefix that has the field.

    >>> entries = {"*": {"hooks": {"on_enqueue": "a"}}, "mail*": {"paused": True}, "mail.x*": {"hooks": None}}
    >>> hooks_of(entries, "mail"), hooks_of(entries, "mail.x.dlq")
    ({'on_enqueue': 'a'}, {})
    """
    fitting = [name for name in policies if name == topic or (name.endswith("*") and topic.startswith(name[:-1]))]
    having = [name for name in fitting if "hooks" in policies[name]]
    closest = max(having, key=lambda name: (name == topic, len(name)), default="")
    return policies[closest]["hooks"] or {} if having else {}


async def _topics(
    view: View, policies: Mapping[str, Mapping[str, Any]], script: str | None
) -> tuple[list[str], int, bool]:
    """Return the first topics whose policies name a script, or this one; the number of all such topics; and
    if there may be more. Topics without a policy of their own are found among the first ones that have items."""
    wanted = [one for one in _named(policies) if script is None or one.script == script]
    topics = {one.topic for one in wanted if not one.topic.endswith("*")}
    partly = False
    if any(one.topic.endswith("*") for one in wanted):
        page = await view.client.topics_page(all_states=True, page_topics=LOOKED_AT)
        partly = page.cursor is not None
        topics |= {one.topic for one in page.topics}
    scripts = {one.script for one in wanted}
    found = [topic for topic in sorted(topics) if scripts & {hooks_of(policies, topic).get(hook) for hook in HOOKS}]
    return found[:MOST_ASKED], len(found), partly


async def _calls(view: View, topics: list[str]) -> list[Calls]:
    stats = await asyncio.gather(*(view.client.topic_stats(topic, tenants=1) for topic in topics))
    return [Calls(topic, one.hooks, one.missing) for topic, one in zip(topics, stats, strict=True)]


def _hook_in(source: str) -> str:
    """Return the hook that a sample is tried with first."""
    return next((hook for hook in HOOKS if hook in source), HOOKS[0])


# ------------------------------------------------------------------------------------------ try, save


async def _try(view: View, form: Form) -> Mapping[str, Any]:
    script = form.get("script", "")
    try:
        sample = _sample(form)
        failure: dict[str, Any] = {}
        hook = form.get("hook", "")
        if hook == "on_failure":
            failure = {
                "attempt": whole("Attempt", form.get("attempt", "")),
                "cause": CAUSES.get(form.get("cause", "")),
                "reason": form.get("reason", ""),
            }
        tried = await view.client.try_hook(sample, hook=hook, source=_text(form, "source"), **failure)  # type: ignore[arg-type]
    except (Unauthenticated, Forbidden):
        raise
    except FoqsError as wrong:
        return await _shown(view, script, form, wrong)
    return await _shown(view, script, form, tried=outcome(hook, sample, tried))


def outcome(hook: str, sample: ItemSpec, tried: Tried) -> dict[str, Any]:
    """Return what a try gave: the fields that the script set, (name, before, after), and its decision, in words."""
    changed = []
    if tried.item is not None:
        for field in SET_BY_SCRIPTS:
            before, after = getattr(sample, field), getattr(tried.item, field)
            if before != after:
                changed.append((field, _value(before), _value(after)))
    if tried.error is not None:
        said = f"The call failed: {tried.error}"
    elif tried.refuse is not None:
        said = f"The script refuses the item: {tried.refuse}"
    elif hook == "on_failure":
        said = "The topic's policy decides." if tried.action is None else f"The script decides: {tried.action}."
        said += "" if tried.delay_ms is None else f" The delay is {tried.delay_ms:,} ms, if the item returns."
    else:
        said = "The script sets these fields." if changed else "The script changes nothing."
    return {
        "said": said, "kind": "bad" if tried.error is not None else "warn" if tried.refuse is not None else "ok",
        "changed": changed, "elapsed_us": tried.elapsed_us, "memory_bytes": tried.memory_bytes,
    }  # fmt: skip


def _value(value: Any) -> str:
    return "–" if value is None else json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def _sample(form: Form) -> ItemSpec:
    """Raises Invalid."""
    headers: dict[str, str] = {}
    for line in _text(form, "headers").split("\n"):
        name, colon, value = line.partition(":")
        if line.strip() and not colon:
            raise Invalid(f"headers: each line is `name: value`, not {printable(line)}")
        if colon:
            headers[name.strip()] = value.strip()
    return ItemSpec(
        form.get("topic", ""), _text(form, "payload").encode(), headers=headers or None,
        fairness_key=form.get("fairness_key") or None,
    )  # fmt: skip


def _text(form: Form, name: str) -> str:
    """Return a text of several lines as the user wrote it: browsers send each line's end as CR LF."""
    return form.get(name, "").replace("\r\n", "\n")


async def _save(view: View, form: Form) -> Done | Mapping[str, Any]:
    script, source = form.get("script", ""), _text(form, "source")
    try:

        def decide(entries: Mapping[str, str]) -> Changes:
            check_mark(form.get("mark", ""), printable(SCRIPT + script), entries.get(SCRIPT + script))
            return {SCRIPT + script: source}, ()

        change = await view.client.change_settings(decide)
    except (Unauthenticated, Forbidden):
        raise
    except FoqsError as wrong:
        return await _shown(view, script, form, wrong)
    text = f"Script {printable(script)} is saved: its next call runs the new source.{said_of(change)}"
    return Done(text, to=_url(view)(script), well=not (change and change.missing))


PAGE = Page("/hooks", "Hooks", "hooks.html", load, key="k")
ONE = Page("/hooks/{script:path}", "Script", "hook.html", load_one, home="/hooks")
ACTIONS = (Action("/hooks/try", _try, page=ONE), Action("/hooks/save", _save, page=ONE))
