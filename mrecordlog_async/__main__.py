"""`python -m mrecordlog_async` is `mrecordlog`."""

import sys


def run() -> int:
    """Run the command line. Ctrl-C ends it quietly, even while its modules are imported."""
    try:
        from mrecordlog_async.cli.main import main

        return main()
    except KeyboardInterrupt:
        return 130  # cli.exit_codes.INTERRUPTED, which may not be imported yet


if __name__ == "__main__":
    sys.exit(run())
