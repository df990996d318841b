"""Power cuts of logs and table on a real disk. For more: `python -m tests.spark.real_disks --cuts 12`."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.faults import real_disk
from tests.spark import real_disks


def test_a_power_cut_on_a_real_file_system_loses_nothing_and_doubles_nothing() -> None:
    """On ext4, with all files on one image, each acknowledged record is in the table once after two cuts."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    try:
        with real_disk.image("ext4") as (file, mount), real_disk.mounted(file, mount):
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no image of ext4 can be mounted here: {error}")
    outcome = real_disks.run_cuts("ext4", 1, 2, seed=1, services="a", with_spark=False)
    assert len(outcome.cuts) == 2 and outcome.records > 0 and outcome.batches > 2
