"""Parts of the rows of the two tables of settings: `Options` of the data source, and `DrainJob`.

Both are dataclasses. The metadata of a field says once how users spell it, how its text is read and what it means. The
parser of Spark's options, the command line of `drain` and the table in the manual are derived from that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from mrecordlog_async.spark.settings.option_values import OptionError, is_token_of_one
from mrecordlog_async.support.nearest import did_you_mean, nearest

_SET_BY = "set by"

SPARK_OWN = frozenset({"checkpointlocation", "queryname", "triggeravailablenow", "asyncprogresstrackingenabled"})
"""Options that Spark's own reader and writer pass on."""

_ELSEWHERE = {
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
    "minoffsetspertrigger": "minRecordsPerTrigger",
    "assign": "subscribe",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "topic": "queue",
    "topics": "subscribe",
    "stream": "queue",
    "kafka.bootstrap.servers": "servers",
    "url": "servers",
}
"""The names of the same options in other sources."""


@dataclass(frozen=True, slots=True)
class Flag:
    """Spelling of a setting on the command line of `drain`."""

    name: str  # with its dashes
    help: str  # what it does, for `--help`
    metavar: str = ""  # the word for its value in `--help`; "" for a flag without a value
    # Reads its text, and raises ValueError; None for a flag of an option, which has its own
    read: Callable[[str], Any] | None = None
    means: object = None  # the value of a flag that takes none
    gather: Callable[[list[Any]], Any] | None = None  # for a flag that may be repeated: makes one value of all of them
    required: bool = False  # whether the command needs it

    @property
    def row(self) -> Mapping[str, object]:
        """The metadata of a field that only the command line sets."""
        return {_SET_BY: (self,)}


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the data source."""

    name: str  # as Spark's users write it, in any case
    read: Callable[[str], Any]  # reads its text, and raises ValueError
    where: str  # reads and writes that it is for, for the manual
    meaning: str  # for the manual
    default: str | None = None  # for the manual, if the field's default does not say it
    flag: Flag | None = None  # what `drain` calls it, if it has it as an option; its text is that of the option

    @property
    def row(self) -> Mapping[str, object]:
        """The metadata of a field that this option sets."""
        return either(self)

    def value_of(self, text: str) -> Any:
        """Read *text*. Raises OptionError, which names the option."""
        try:
            return self.read(text)
        except OptionError:
            raise
        except ValueError as error:
            raise OptionError(f"{self.name}: {error}") from None


def either(*one_of: Option) -> Mapping[str, object]:
    """Return the metadata of a field that one of several options sets, which exclude each other."""
    return {_SET_BY: one_of}


def options_of(table: type) -> Iterator[tuple[Any, Option]]:
    """Yield (field, option) for all options of *table*, in its order."""
    for each in fields(table):
        for one in each.metadata.get(_SET_BY, ()):
            if isinstance(one, Option):
                yield each, one


def flags_of(table: type) -> Iterator[tuple[str, Flag]]:
    """Yield (name of the field, flag) for the fields of *table* that only the command line sets, in its order."""
    for each in fields(table):
        for one in each.metadata.get(_SET_BY, ()):
            if isinstance(one, Flag):
                yield each.name, one


def read_options(table: type, found: Mapping[str, str]) -> dict[str, Any]:
    """Return field → value for the options in *found*, whose names are in lower case.

    Raises:
        OptionError: an option is unknown or malformed, or two of them exclude each other.
    """
    _refuse_unknown({one.name.lower(): one.name for _, one in options_of(table)}, found)
    values: dict[str, Any] = {}
    given_by: dict[str, str] = {}
    for each, one in options_of(table):
        text = found.get(one.name.lower())
        if text is None:
            continue
        if each.name in values:
            raise OptionError(f"set {given_by[each.name]} or {one.name}, not both")
        values[each.name], given_by[each.name] = one.value_of(text), one.name
    return values


def _refuse_unknown(known: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raise OptionError for the first name that neither this data source nor Spark has.

    A misspelt limit or `truncate` must not be ignored silently.
    """
    unknown = next(
        (name for name in found if name not in known and name not in SPARK_OWN and not is_token_of_one(name)), None
    )
    if unknown is None:
        return
    if unknown == "paths":
        raise OptionError("load() was given several directories; load each one, and combine the frames with union()")
    near = nearest(unknown, known)
    meant = _ELSEWHERE.get(unknown) or (near and known[near])
    raise OptionError(f"unknown option {unknown!r}{did_you_mean(meant)}")
