"""What an error of a system call means."""

from __future__ import annotations

import errno
import os

import pytest

from mrecordlog_async.support.disk_errors import has_no_room, is_refusal

OF_A_MEDIUM = (
    "EIO",
    "ENODATA",
    "EREMOTEIO",
    "EILSEQ",
    "ENOLINK",
    "EBADE",
    "ETIME",
    "ETIMEDOUT",
    "EREMCHG",
    "ENOMEDIUM",
)
OF_A_FILE_SYSTEM = ("EUCLEAN", "EBADMSG", "ESHUTDOWN", "ESTALE", "EROFS", "ENOTCONN", "ECONNABORTED")
REFUSALS = (
    "ENOSYS",
    "EOPNOTSUPP",
    "EINVAL",
    "EPERM",
    "EACCES",
    "ENOTTY",
    "ENODEV",
    "EXDEV",
    "ENOMEM",
    "EAGAIN",
    "EBUSY",
)
FULL = ("ENOSPC", "EDQUOT", "EFBIG")
KNOWN = OF_A_MEDIUM + OF_A_FILE_SYSTEM + REFUSALS + FULL


@pytest.mark.parametrize("name", [name for name in KNOWN if hasattr(errno, name)])
def test_a_failing_disk_is_no_system_that_refuses_a_call(name: str) -> None:
    """Nor is a full one; whatever else a system says, it refuses a call that the log can do without."""
    number = getattr(errno, name)
    error = OSError(number, os.strerror(number))
    assert (is_refusal(error), has_no_room(error)) == (name in REFUSALS, name in FULL)
