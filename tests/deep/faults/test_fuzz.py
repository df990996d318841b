"""On hostile bytes, parsers raise only documented errors, allocate no more than the input, and always end."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tests.deep.faults.test_damage import several_segments
from tests.faults.damage import Intact, on_disk
from tests.faults.driver import DIRECTORY, without_chance
from tests.faults.explore import Tally
from tests.faults.fuzz.bodies import BODIES, body_seeds
from tests.faults.fuzz.targets import TARGETS, seeds
from tests.faults.histories import Case

EXAMPLES = 400
ALL = {**TARGETS, **BODIES}

_settings = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

BYTES = st.binary(max_size=300)
NUMBERS = st.sampled_from([0, 1, 2, 255, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1])


@st.composite
def mutated(draw: st.DrawFn, name: str) -> bytes:
    """Change input that the parser accepts: insert numbers, flip, cut and repeat bytes."""
    data = bytearray(draw(st.sampled_from(body_seeds(name) if name in BODIES else seeds(name))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(["flip", "number", "cut", "insert", "double"]))
        if kind == "flip" and data:
            data[at] ^= draw(st.integers(1, 255))
        elif kind == "number":
            width = draw(st.sampled_from(["<H", "<I", "<Q"]))
            data[at : at + struct.calcsize(width)] = struct.pack(
                width, draw(NUMBERS) & (2 ** (8 * struct.calcsize(width)) - 1)
            )
        elif kind == "cut":
            del data[at:]
        elif kind == "insert":
            data[at:at] = draw(st.binary(max_size=20))
        else:
            data += data[at:]
    return bytes(data)


@pytest.mark.parametrize("name", ALL)
def test_parser_takes_any_bytes(name: str, tally: Tally) -> None:
    """Random bytes and damaged good ones: accepted or refused with the documented error."""

    @_settings
    @given(st.one_of(BYTES, mutated(name)))
    def parse(data: bytes) -> None:
        ALL[name](data)

    parse()
    tally.fuzzed += EXAMPLES


@pytest.mark.parametrize("name", ["record", "table", "batches", "body of runs"])
def test_lying_counts_allocate_no_more_than_is_there(name: str, tally: Tally) -> None:
    """A count of billions in a record of a few bytes costs nothing."""
    for good in body_seeds(name) if name in BODIES else seeds(name):
        for at in range(min(len(good), 40)):
            data = good[:at] + b"\xff\xff\xff\x7f" + good[at + 4 :]
            tracemalloc.start()
            ALL[name](data)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 40 * len(data) + 200_000, f"{peak} bytes for {len(data)}"
            tally.fuzzed += 1


@_settings
@given(st.data())
def test_whole_logs_of_hostile_bytes(data: st.DataObject) -> None:
    """A hostile directory is opened or refused: CorruptionError, or OSError if it is not a log at all."""
    from mrecordlog_async import CorruptionError
    from mrecordlog_async.readonly import ReadOnlyLog

    intact = _intact()
    files: dict[str, bytes | None] = dict(intact.files)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(files)))
        content = bytearray(files[name] or b"")
        at = data.draw(st.integers(0, len(content)))
        junk = data.draw(st.binary(max_size=64))
        content[at : at + len(junk)] = junk
        files[name] = bytes(content)
    disk = on_disk(files)
    with contextlib.suppress(CorruptionError, FileNotFoundError):
        ReadOnlyLog.open(DIRECTORY, filesystem=disk).close()
    assert not disk.open_handles()


def _intact() -> Intact:
    if not _cache:
        with without_chance():
            _cache.append(Intact.of(Case(several_segments).run(moments=False), closed=False))
    return _cache[0]


_cache: list[Intact] = []
