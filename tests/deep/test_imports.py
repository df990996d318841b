"""Each part of the package works with its own extra installed."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from importlib.metadata import packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("mrecordlog_async.protocol", ["aiohttp", "msgspec", "prometheus_client", "fastapi", "uvloop"]),
        ("mrecordlog_async.protocol.wire", ["aiohttp", "msgspec", "prometheus_client", "fastapi", "uvloop"]),
        ("mrecordlog_async.protocol.schemas", ["aiohttp", "prometheus_client", "fastapi", "uvloop"]),
        ("mrecordlog_async.fastapi", ["aiohttp", "uvloop"]),
        ("mrecordlog_async.client", ["prometheus_client", "fastapi", "uvloop", "pyarrow"]),
        ("mrecordlog_async.service.server", ["fastapi", "uvloop", "pyarrow", "pyspark", "rich"]),
        (
            "mrecordlog_async.cli.main",
            ["aiohttp", "msgspec", "prometheus_client", "uvloop", "pyarrow", "pyspark", "rich"],
        ),
    ],
)
def test_a_room_needs_only_its_own_extra(module: str, without: list[str]) -> None:
    """Importing it works without the packages of the other extras."""
    script = f"import sys; sys.modules.update(dict.fromkeys({without!r})); import {module}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("mrecordlog_async.client", "httptools", "client"),
        ("mrecordlog_async.client", "msgspec", "client"),
        ("mrecordlog_async.client.client", "msgspec", "client"),
        ("mrecordlog_async.aiohttp", "aiohttp", "server"),
        ("mrecordlog_async.aiohttp", "prometheus_client", "server"),
        ("mrecordlog_async.fastapi", "fastapi", "fastapi"),
        ("mrecordlog_async.fastapi", "msgspec", "fastapi"),
        ("mrecordlog_async.fastapi", "prometheus_client", "fastapi"),
    ],
)
def test_a_module_without_its_extra_says_what_to_install(module: str, package: str, extra: str) -> None:
    """The name of a package does not say that the extra has others, too."""
    script = f"import sys; sys.modules[{package!r}] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    said = f"ModuleNotFoundError: {package} is not installed: run pip install 'mrecordlog_async[{extra}]'"
    assert done.stderr.splitlines()[-1] == said


def test_a_session_without_its_extra_says_what_to_install() -> None:
    """The module itself can be imported everywhere; Spark is needed from the call on."""
    script = (
        "import os, sys; sys.modules['pyspark'] = None; os.environ['PYSPARK_GATEWAY_PORT'] = '1'\n"
        "from mrecordlog_async.spark.session import spark_session; spark_session()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    said = "ModuleNotFoundError: pyspark is not installed: run pip install 'mrecordlog_async[spark]'"
    assert done.stderr.splitlines()[-1] == said


@pytest.mark.parametrize(
    "name",
    [
        "mrecordlog_async",
        "mrecordlog_async.aiohttp",
        "mrecordlog_async.client",
        "mrecordlog_async.fastapi",
        "mrecordlog_async.service",
    ],
)
def test_the_package_hands_out_what_it_promises(name: str) -> None:
    """Every name in `__all__` exists."""
    module = importlib.import_module(name)
    assert all(getattr(module, name) is not None for name in module.__all__)


def distributions_of(name: str, extras: frozenset[str]) -> set[str]:
    """Return what pip installs for *name* with *extras*."""
    found, waiting = set[str](), [(canonicalize_name(name), extras)]
    while waiting:
        name, extras = waiting.pop()
        if name in found:
            continue
        found.add(name)
        wanted = [
            requirement
            for requirement in map(Requirement, requires(name) or ())
            if requirement.marker is None
            or any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras))
        ]
        waiting += [(canonicalize_name(each.name), frozenset(each.extras)) for each in wanted]
    return found


@pytest.mark.parametrize(
    ("extra", "module", "parts"),
    [
        ("client", "mrecordlog_async.client", ["client", "protocol"]),
        ("server", "mrecordlog_async.aiohttp", ["aiohttp", "service", "protocol"]),
        ("server", "mrecordlog_async.service.server", ["service", "protocol"]),
        ("fastapi", "mrecordlog_async.fastapi", ["fastapi", "protocol", "service"]),  # of the service, its options
    ],
)
def test_one_extra_is_enough(extra: str, module: str, parts: list[str]) -> None:
    """A module works if only its extra is installed, and imports no part of the package that needs another extra."""
    installed = distributions_of("mrecordlog_async", frozenset({extra}))
    missing = [
        name
        for name, providers in packages_distributions().items()
        if not installed.intersection(map(canonicalize_name, providers))
    ]
    script = (
        f"import json, sys; sys.modules.update(dict.fromkeys(json.loads(sys.argv[1]))); import {module}; "
        "print(json.dumps([name for name in sys.modules if name.startswith('mrecordlog_async.')]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(missing)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[1] for name in json.loads(done.stdout)}
    assert loaded & {"client", "protocol", "service", "aiohttp", "fastapi", "spark", "cli"} == set(parts)
