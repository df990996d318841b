"""Each optional system call, refused by the kernel with each error that file systems and sandboxes refuse it with."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.refused_calls import MARK
from tests.storage.test_refused_calls import OPTIONAL, use_log
from tests.storage.test_refused_calls import pytestmark as pytestmark

REFUSALS = ("ENOSYS", "EOPNOTSUPP", "EINVAL", "ENOTTY", "EACCES", "EBADF", "ENODEV", "EXDEV", "ENOMEM")


@pytest.mark.nightly
@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("calls", OPTIONAL)
def test_an_optional_call_may_be_refused_with_any_error(calls: str, name: str, tmp_path: Path) -> None:
    """The log opens, appends, rolls, truncates, reads from the disk, is copied and opens again without the call."""
    assert use_log(calls, getattr(errno, name), tmp_path / name) == (0, MARK + "\n")
