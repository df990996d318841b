"""The gate: bugs that are put into the source on purpose, one at a time, and the tests that find them.

    python -m tests.deep.gate                   every bug
    python -m tests.deep.gate memory storage    the bugs of these rooms, or those of these names
    python -m tests.deep.gate --changed         the bugs of the rooms that this checkout changes
    python -m tests.deep.gate --record          every bug; write down which test finds it

A suite that finds nothing proves nothing. `bugs.toml` is the table: each bug is a small change of one file, and names
the sentence of `docs/` that it breaks. A bug is *found* if

1. a smoke test passes with the bug in: a log opens, appends, truncates, closes and opens again,
2. then a test fails with an AssertionError, and
3. the changed line ran before that, in the tests of the same file.

Any other failure (an exception that nobody asserted, a time-out, an import) proves nothing: such a bug is *broken*, and
so is one whose old text does not stand once in its file, or whose sentence does not stand in `docs/`. Tests are looked
for near the room, first in `tests/`, then in `tests/deep`; no bug names its tests. `found.json` remembers which test
found a bug the last time: it runs first, and all others if it passes. At the end every test that found a bug runs on
the source as it is: the control.
"""
