"""The reports of a drain's data source, in a file: Spark before 4.2 passes nothing on (`reportLatestOffset`)."""

from __future__ import annotations

import json
import os
from typing import Any


def write_report(path: str, report: dict[str, Any]) -> None:
    """Replace the report in one step; a drain that reads meanwhile finds the old one or the new one."""
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(report, file)
    os.replace(f"{path}.new", path)


def read_report(path: str) -> str | None:
    """Return the newest report as JSON; None before the first one."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None
