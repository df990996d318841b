"""Fuzz with atheris for as long as you like: `python -m tests.faults.fuzz [-max_total_time=60 …]`.

Needs `pip install atheris`. The first byte of each input chooses the parser; arguments go to libFuzzer. A corpus of
good inputs is written to a temporary directory first, unless one is named.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Run until the time is over or something broke."""
    try:
        import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]  # it brings no types
    except ImportError:
        raise SystemExit("atheris is not installed: pip install atheris") from None
    with atheris.instrument_imports(include=["mrecordlog_async"]):
        from .bodies import BODIES, body_seeds
        from .targets import TARGETS, seeds
    targets = [*TARGETS.values(), *BODIES.values()]

    def one(data: bytes) -> None:
        if data:
            targets[data[0] % len(targets)](data[1:])

    arguments = list(sys.argv)
    if all(argument.startswith("-") for argument in arguments[1:]):
        corpus = Path(tempfile.mkdtemp(prefix="fuzz-corpus-"))
        for number, name in enumerate([*TARGETS, *BODIES]):
            for index, seed in enumerate(body_seeds(name) if name in BODIES else seeds(name)):
                (corpus / f"{number}-{index}").write_bytes(bytes([number]) + seed)
        arguments.append(str(corpus))
    atheris.Setup(arguments, one)
    atheris.Fuzz()


main()
