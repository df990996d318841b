"""Gauges in the text format of Prometheus, for series that are too many for a registry: they are rendered in turns."""

from __future__ import annotations

PREFIX = "mrecordlog_"


def metric_head(name: str, documentation: str) -> bytes:
    """Return the lines before the samples of a gauge."""
    return f"# HELP {PREFIX}{name} {documentation}\n# TYPE {PREFIX}{name} gauge\n".encode()


def metric_line(name: str, value: float, **labels: str) -> bytes:
    """Return one sample of a gauge."""
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{PREFIX}{name}{f'{{{inside}}}' if inside else ''} {float(value)}\n".encode()


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
