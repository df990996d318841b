"""Decoding responses."""

from __future__ import annotations

import subprocess
import sys

FIRST_RESPONSES = """
import sys
from threading import Barrier, Thread
from msgspec import defstruct
from mrecordlog_async.protocol.responses import Reply, decoded

sys.setswitchinterval(1e-6)
for number in range(300):
    fields = [(f"field{each}", dict[str, list[int | None]] | None, None) for each in range(20)]
    kind = defstruct(f"Listing{number}", [("items", list[defstruct(f"Item{number}", fields)])])
    barrier = Barrier(4)

    def work():
        barrier.wait()
        assert decoded(Reply(200, {}, b'{"items":[{"field1":{"a":[1]}}]}'), kind).items[0].field1 == {"a": [1]}

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_decode_the_first_responses_of_a_kind_at_once() -> None:
    """A stream of several servers asks them on threads: its process must not end with a segmentation fault."""
    done = subprocess.run([sys.executable, "-c", FIRST_RESPONSES], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
