"""What lies after the last whole batch: where the zeros begin."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mrecordlog_async.format.frame import BLOCK_BYTES
from mrecordlog_async.recovery.torn_or_damaged import length_without_zeros

lengths = st.integers(0, 3 * BLOCK_BYTES) | st.sampled_from(
    [blocks * BLOCK_BYTES + more for blocks in (0, 1, 2) for more in (0, 1, BLOCK_BYTES - 1)]
)


@given(before=lengths, mark=st.sampled_from([b"", b"\x01", b"\x00\xff"]), zeros=lengths)
def test_the_last_byte_that_is_not_zero_is_found_in_any_block(before: int, mark: bytes, zeros: int) -> None:
    """Comparing whole blocks gives the length that looking at each byte gives."""
    data = bytes(before) + mark + bytes(zeros)
    assert length_without_zeros(data) == len(data.rstrip(b"\0")) == (before + len(mark) if mark else 0)
