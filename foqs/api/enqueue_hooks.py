"""The hook of topics that runs when items are enqueued: it sets fields of an item, or refuses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from foqs.api.validation import Intake
from foqs.errors import FoqsError, Invalid
from foqs.hooks.protocol import EnqueueResult, Failed, Hook, Outcome
from foqs.hooks.topic_hooks import TopicHook, TopicHooks, new_item

Done = Callable[[dict[int, EnqueueResult], dict[int, FoqsError]], None]
"""Called once with the results of scripts and with the errors of items that are not stored, by index."""


def run(hooks: TopicHooks, ns: str, taken: Intake, specs: Sequence[Any], timeout_ms: int, done: Done) -> None:
    """Run the hooks of the items in `taken`, which are the valid ones of `specs`. `timeout_ms` is the request's."""
    found: dict[str, TopicHook] = {}
    for topic in taken.hooked:
        hook = hooks.of((ns, topic), Hook.ON_ENQUEUE)
        if hook is not None:
            found[topic] = hook
    places = [at for at in taken.places() if specs[at].topic in found]
    if not places:
        done({}, {})
        return

    def ended(outcomes: list[Outcome]) -> None:
        results: dict[int, EnqueueResult] = {}
        errors: dict[int, FoqsError] = {}
        for at, outcome in zip(places, outcomes, strict=True):
            if isinstance(outcome, Failed):
                hook = found[specs[at].topic]
                hooks.report(hook, outcome)
                if hook.refuses:
                    errors[at] = hook.refusal(outcome)
                continue
            result = outcome.result
            assert isinstance(result, EnqueueResult), "the pool checks results"
            if result.refuse is not None:
                errors[at] = Invalid(result.refuse)
            else:
                results[at] = result
        done(results, errors)

    calls = [found[specs[at].topic].call(read_by_script(specs[at])) for at in places]
    hooks.pool.run(calls, min(timeout_ms, hooks.request_ms()), ended)


def read_by_script(spec: Any) -> dict[str, Any]:
    """Return the fields of an ItemSpec that `on_enqueue` reads."""
    return new_item(spec.topic, spec.headers, len(spec.payload), spec.priority)


def set_fields(spec: Any, result: EnqueueResult) -> None:
    """Set the fields of a hook's result in an ItemSpec, in place of the producer's."""
    if result.fairness_key is not None:
        spec.fairness_key = result.fairness_key
    if result.weight is not None:
        spec.weight = result.weight
    if result.throttle_keys is not None:
        spec.throttle_keys = list(result.throttle_keys)
    if result.priority is not None:
        spec.priority = result.priority
    if result.delay_ms is not None:
        spec.delay_ms, spec.deliver_after_ms = result.delay_ms, None
    if result.ttl_ms is not None:
        spec.ttl_ms, spec.expires_at_ms = result.ttl_ms, None
