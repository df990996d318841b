"""Power cuts on mounted images of real file systems, with a log that recycles its segments."""

from __future__ import annotations

import os
import subprocess

import pytest

from . import real_disk


@pytest.mark.parametrize("kind", real_disk.MAKE)
def test_a_power_cut_on_a_real_file_system_loses_nothing(kind: str) -> None:
    """Every acknowledged append and truncate is there after the image is mounted again, again and again."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    try:
        with real_disk.image(kind) as (file, mount), real_disk.mounted(file, mount):
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no image of {kind} can be mounted here: {error}")
    assert real_disk.run_rounds(kind, 3, seed=1) > 2
