"""Server processes for the length of a measurement."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.benchmarks.serving import serve_command, serving


def test_server_runs_while_the_block_lasts(tmp_path: Path) -> None:
    """It responds at the yielded address, and its log is closed afterwards."""
    with serving(serve_command(str(tmp_path / "log"))) as address, urlopen(f"{address}/healthz") as response:
        assert response.status == 200
    with pytest.raises(OSError, match="refused"):
        urlopen(f"{address}/healthz")


LISTENING = "import sys; print('listening on http://127.0.0.1:1', file=sys.stderr); sys.exit(3)"


@pytest.mark.parametrize(
    ("program", "message"),
    [("import sys; sys.exit('no space')", "did not start: no space"), (LISTENING, "ended with exit code")],
)
def test_server_that_fails_is_an_error(program: str, message: str) -> None:
    """Figures of a server that ended on its own would be worthless."""
    with pytest.raises(RuntimeError, match=message), serving([sys.executable, "-c", program]):
        pass
