"""A queue's options, seal and consumers as members of a dump line. Unset ones are left out."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from mrecordlog_async.maintenance.queue_settings import QueueSettings
from mrecordlog_async.memory.settings import owner_bytes
from mrecordlog_async.model import POSITION_MAX
from mrecordlog_async.options import QueueOptions

_DEFAULTS = asdict(QueueOptions())


def settings_facts(settings: QueueSettings) -> dict[str, Any]:
    """Return what *settings* set, for JSON."""
    options = {name: value for name, value in asdict(settings.options).items() if value != _DEFAULTS[name]}
    consumers = [_consumer_facts(settings, name) for name in sorted(settings.consumers)]
    facts = {"options": options, "sealed": settings.sealed, "consumers": consumers}
    return {name: value for name, value in facts.items() if value}


def _consumer_facts(settings: QueueSettings, name: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"consumer": name, "position": settings.consumers[name]}
    if name in settings.owners:
        facts["owner"] = settings.owners[name]
    return facts


def settings_of(facts: dict[str, Any]) -> QueueSettings:
    """Return what a queue's line sets; the lines of older dumps set nothing.

    Raises:
        ValueError: A value is outside its range. The same goes for KeyError and TypeError.
    """
    sealed = facts.get("sealed", False)
    if type(sealed) is not bool:
        raise ValueError(f"sealed must be true or false, not {sealed!r}")
    settings = QueueSettings(QueueOptions(**facts.get("options", {})), sealed)
    for consumer in facts.get("consumers", ()):
        name, position, owner = consumer["consumer"], consumer["position"], consumer.get("owner")
        if type(name) is not str or type(position) is not int or not 0 <= position <= POSITION_MAX + 1:
            raise ValueError(f"a consumer needs a name and a position, not {consumer!r}")
        settings.consumers[name] = position
        if owner is not None:
            owner_bytes(owner)  # raises for one that is none
            settings.owners[name] = owner
    return settings
