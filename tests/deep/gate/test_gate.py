"""The gate itself: its table fits the source and the documentation, and it tells finds from everything else."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from .__main__ import FOUND
from .running import NEAR, run_control, try_bug
from .table import ROOT, BrokenBug, Bug, read_bugs

BUGS = read_bugs()
ROOMS = sorted({*NEAR} - {"compiled", "root", "servers", "support"})

FRAME = "tests/format/test_frame.py"
BUG = BUGS["checksum_bound_to_the_sector_only"]
SENTENCE = "A damaged record is never returned."


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_fits_the_source_and_breaks_a_sentence_of_the_documentation(name: str) -> None:
    """Its old text stands once in its file, the changed line can be marked, and the sentence stands in `docs/`."""
    BUGS[name].check()


def test_what_found_each_bug_is_still_there() -> None:
    """It is run first. A test that has moved is looked for in all of them, which takes longer than a bug may."""
    for bug, test in json.loads(FOUND.read_text()).items():
        path, _, name = test.partition("::")
        assert bug in BUGS
        assert f"def {name.partition('[')[0].split('::')[-1]}(" in (ROOT / path).read_text(), (bug, test)


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_has_bugs(room: str) -> None:
    """At least eight: with fewer, what finds them proves little about the room."""
    assert Counter(bug.room for bug in BUGS.values())[room] >= 8


def test_the_control_finds_nothing() -> None:
    """Tests that pass find nothing in the source as it is, and one that fails is reported."""
    assert run_control([FRAME]) == []
    assert run_control(["tests/deep/gate/canary.py"]) != []


def test_a_bug_is_found_by_an_assertion_after_its_line_ran() -> None:
    """The test that found it is named."""
    assert try_bug(BUG, [[FRAME]]).test.startswith(FRAME)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("    blocks = body_bytes // FRAME_PAYLOAD_BYTES_MAX + 2\n", "    blocks = no_such_thing\n", "smoke"),
        ("    if left < FRAME_HEADER_BYTES:\n", "    if left < 0:\n", "not once"),
        ("        begin = skip_padding(piece, base, at)\n", "        begin = piece.no_such_thing\n", "AttributeError"),
    ],
    ids=["the smoke test fails", "its text does not stand once", "a test fails without an assertion"],
)
def test_a_bug_that_proves_nothing_is_broken(old: str, new: str, reason: str) -> None:
    """It is red: neither found, nor one that the tests miss."""
    verdict = try_bug(Bug("broken", "format/frame.py", old, new, SENTENCE), [[FRAME]])
    assert verdict.kind == "broken" and reason in verdict.reason


def test_a_bug_whose_sentence_left_the_documentation_is_broken() -> None:
    """A mechanism leaves with its sentence, and the sentence with its bugs."""
    with pytest.raises(BrokenBug, match="no page of docs/"):
        replace(BUG, breaks="No record is ever read.").check()
