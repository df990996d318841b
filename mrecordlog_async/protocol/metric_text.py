"""Series in the text format of Prometheus: for those that are too many for a registry, and processes without one."""

from __future__ import annotations

PREFIX = "mrecordlog_"


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metric_head(name: str, documentation: str, kind: str = "gauge") -> bytes:
    """Return the lines before the samples of a series. kind: gauge or counter."""
    return f"# HELP {PREFIX}{name} {documentation}\n# TYPE {PREFIX}{name} {kind}\n".encode()


def metric_line(name: str, value: float, **labels: str) -> bytes:
    """Return one sample."""
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{PREFIX}{name}{f'{{{inside}}}' if inside else ''} {float(value)}\n".encode()


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
