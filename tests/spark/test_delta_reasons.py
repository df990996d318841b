"""An error of delta-rs is one line of a sentence."""

from __future__ import annotations

import pytest

from mrecordlog_async.spark.delta_reasons import reason_of

EXPIRED = (
    "Kernel error -> Generic S3 error\n          \x1b[31m↳\x1b[0m Error performing list request\n"
    "           \x1b[31m↳\x1b[0m Error performing GET http://h/b?list-type=2 in 41ms - Server returned non-2xx status "
    'code\n            \x1b[31m↳\x1b[0m 403 Forbidden\n             \x1b[31m↳\x1b[0m <?xml version="1.0" '
    'encoding="UTF-8"?>\n<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message>'
    "<RequestId>1</RequestId></Error>\n"
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (EXPIRED, "Kernel error -> Generic S3 error: ExpiredToken: The provided token has expired"),
        ("Arrow error: GET: 503: <?xml version='1.0'?>\n<Error><Code>SlowDown</Code></Error>.", "503: SlowDown"),
        ("Generic S3 error\n ↳ HTTP error\n  ↳ connection closed", "Generic S3 error: connection closed"),
        ("one line.", "one line"),
    ],
)
def test_a_reason_has_one_line(text: str, reason: str) -> None:
    """The call stack, the addresses and the XML are left out."""
    assert reason_of(OSError(text)).endswith(reason) and "\n" not in reason_of(OSError(text))
