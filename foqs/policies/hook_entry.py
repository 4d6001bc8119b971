"""Which scripts run for a topic: the field `hooks` of its policy, which names settings `script.<name>`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from foqs.errors import Invalid
from foqs.hooks.protocol import Hook, Script, source_error
from foqs.policies.entries import Entry, checked
from foqs.policies.names import script_name_error

Broken = Literal["refuse", "default"]
ScriptName = Annotated[str, checked(script_name_error)]


@dataclass(frozen=True, slots=True)
class HookRule:
    """Names of the scripts that run for a topic's items; None: none does. `when_broken` None depends on the script."""

    on_enqueue: str | None
    on_failure: str | None
    when_broken: Broken | None

    def script(self, hook: Hook) -> str | None:
        return self.on_enqueue if hook is Hook.ON_ENQUEUE else self.on_failure

    def refuses(self, script: Script) -> bool:
        """Whether items are refused while calls of the script fail: an item without the throttle keys that the script
        sets would pass the throttles."""
        return script.sets_throttle_keys if self.when_broken is None else self.when_broken == "refuse"


class HooksEntry(Entry):
    on_enqueue: ScriptName | None = None
    on_failure: ScriptName | None = None
    when_broken: Broken | None = None

    def rule(self) -> HookRule:
        return HookRule(self.on_enqueue, self.on_failure, self.when_broken)

    def scripts(self) -> list[tuple[Hook, str]]:
        """Return each hook that has a script, with the script's name."""
        both = ((Hook.ON_ENQUEUE, self.on_enqueue), (Hook.ON_FAILURE, self.on_failure))
        return [(hook, name) for hook, name in both if name is not None]


def check_script(source: str) -> None:
    """Check the value of a settings key `script.<name>`, but for its syntax. Raises Invalid."""
    error = source_error(source)
    if error is not None:
        raise Invalid(error)
