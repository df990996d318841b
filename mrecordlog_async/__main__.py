"""`python -m mrecordlog_async` is `mrecordlog`."""

import sys

from mrecordlog_async.cli.main import main

sys.exit(main())
