"""What is published: the files in wheel and sdist, what an installed wheel does, and what the package index shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.deep.built import build, install, known_files
from tests.deep.examples.test_examples import ask
from tests.docs.blocks import ROOT
from tests.serving import free_port

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("mrecordlog_async/", "pyspark_mrecordlog.py")
BARE = ("aiofiles", "click", "crc32c")
"""All that is installed with the package if no extra is named."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both, and the wheel from the sdist."""
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an empty environment, with the packages that it needs; return its Python."""
    (wheel,) = built.glob("*.whl")
    python = install(wheel, tmp_path_factory.mktemp("environment"), extras=False)
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    for name in BARE:
        for file in distribution(name).files or ():
            if ".." not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                (packages / file).write_bytes(file.locate().read_bytes())  # type: ignore[attr-defined]  # it is a Path
    return python


def run(python: Path, *arguments: str) -> str:
    """Run an installed command or Python, away from the source; return what it prints."""
    done = subprocess.run([python, *arguments], cwd=python.parents[1], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    """Source, type marker, the page and the module that Spark looks for: no tests, no data, no other top level."""
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    about = {name.partition(".dist-info/")[2] for name in names if ".dist-info/" in name}
    assert about == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    code = {name for name in names if ".dist-info/" not in name}
    assert code == {name for name in known_files() if name.startswith(PACKAGES) and not name.endswith(".pyx")}
    assert {"mrecordlog_async/py.typed", "mrecordlog_async/service/page/page.html", "pyspark_mrecordlog.py"} <= code


def test_the_sdist_can_be_tested_and_holds_no_stray_file(built: Path) -> None:
    """It has tests, what they read, documents and examples; neither a token nor a log that was in the tree."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    own = (*PACKAGES, "tests/", "docs/", "examples/", ".ci/", ".github/")
    generated = {name.removesuffix("pyx") + "c" for name in known_files() if name.endswith(".pyx")}
    assert generated <= names  # so that building from it needs no Cython
    assert names - generated - {"PKG-INFO", ".gitignore"} <= set(known_files())
    assert {name for name in known_files() if name.startswith(own)} <= names
    assert {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "mkdocs.yml", "noxfile.py"} <= names


@pytest.fixture(scope="module")
def description(built: Path) -> str:
    """Return what the package index shows: the README with other links."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(metadata).decode().partition("\n\n")[2]


def test_the_package_index_accepts_it(built: Path) -> None:
    """Metadata and description of both files pass the check that the index makes."""
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_index_renders_the_description_with_its_picture(description: str) -> None:
    """What renders it there keeps the picture, the address that it is loaded from, and the commands."""
    pytest.importorskip("comrak", reason="readme-renderer[md] is not installed")
    from readme_renderer import markdown

    rendered = str(markdown.render(description))
    assert f'<img src="{PROJECT["urls"]["Documentation"]}images/page.webp"' in rendered
    assert "<p>python3" not in rendered  # a command below a list is code


def test_each_link_of_the_description_leads_to_a_page_or_file_that_is_published(description: str) -> None:
    """A page is on the site, any other file is that of this version, and the picture can be loaded from there."""
    site, source = PROJECT["urls"]["Documentation"], f"{PROJECT['urls']['Source']}/blob/v{PROJECT['version']}/"
    links = re.findall(r"\]\(([^)]+)\)", description)
    pages = [link.removeprefix(site).partition("#")[0] for link in links if link.startswith(site)]
    files = [link.removeprefix(source) for link in links if link.startswith(source)]
    assert all(link.startswith("https://") for link in links)
    assert "images/page.webp" in pages and "LICENSE" in files
    for page in pages:
        assert (ROOT / "docs" / (f"{page.removesuffix('/')}.md" if page.endswith("/") else page)).is_file(), page
    for file in files:
        assert (ROOT / file).is_file(), file


def test_the_description_installs_the_package_by_its_name(description: str) -> None:
    """Who reads it has no checkout: only the command for the tests needs one. No note of the tests is shown."""
    assert re.findall(r"pip install ('[^']+')", description.replace("-e ", "")) == [
        "'mrecordlog_async[fastapi]'",
        "'mrecordlog_async[spark,java]'",
        "'.[dev]'",
    ]
    assert "checkout" not in description.partition("To run all tests")[0]
    assert "<!--" not in description


def test_the_first_command_of_the_description_works_in_an_empty_directory(
    description: str, built: Path, tmp_path: Path
) -> None:
    """With the wheel alone: it makes the program that the README shows, and starts it. Only pip is not run."""
    (wheel,) = built.glob("*.whl")
    install(wheel, tmp_path / ".venv", extras=True)
    command = description.partition("```bash\n")[2].partition("\n```")[0]
    program, _, rest = command.rpartition("\npython3 -m venv ")
    serve = rest.rpartition(" && ")[2].replace(".venv/bin/uvicorn", "exec .venv/bin/python -m uvicorn")
    port = free_port()
    with subprocess.Popen(["bash", "-c", f"{program}\n{serve} --port {port}"], cwd=tmp_path) as serving:
        try:
            assert ask(port, "POST", "/ingest", b"click") == (200, b'{"position":0}')
        finally:
            serving.terminate()
    assert (tmp_path / "fastapi_ingest.py").read_bytes() == (ROOT / "examples" / "fastapi_ingest.py").read_bytes()


def test_site_and_index_name_the_same_place() -> None:
    """Site and repository have one address each, in the metadata, on the pages and in the links of the description."""
    site = (ROOT / "mkdocs.yml").read_text()
    urls = PROJECT["urls"]
    assert f"\nsite_url: {urls['Documentation']}\n" in site
    assert f"\nrepo_url: {urls['Source']}\n" in site
    assert all(url.startswith((urls["Documentation"], urls["Source"])) for url in urls.values())
    named = re.findall(
        r"https://[\w.-]+/mrecordlog_async/|https://github\.com/[\w-]+/\w+", (ROOT / "pyproject.toml").read_text()
    )
    assert set(named) == {urls["Documentation"], urls["Source"]}


def test_a_wheel_from_the_sdist_works_and_says_its_version(python: Path) -> None:
    """Library, command and module run from the installation; the version is that of its metadata."""
    script = "import mrecordlog_async as package; print(package.__version__, package.__file__)"
    version, file = run(python, "-c", script).split()
    assert version == PROJECT["version"]
    assert Path(file).is_relative_to(python.parents[1])
    assert (
        run(python.with_name("mrecordlog"), "--version") == f"mrecordlog {version} (pure: it was installed without)\n"
    )
    run(python, "-m", "mrecordlog_async", "ls", "--help")


def test_importing_the_package_loads_the_log_alone(python: Path) -> None:
    """Nothing is loaded before a name is used; then the core, its two packages, and the standard library."""
    script = "import json, sys; before = {{*sys.modules}}; {}; print(json.dumps([*({{*sys.modules}} - before)]))"
    first = json.loads(run(python, "-c", script.format("import mrecordlog_async")))
    assert {name for name in first if name.startswith("mrecordlog_async")} == {"mrecordlog_async"}
    assert "asyncio" not in first
    loaded = json.loads(run(python, "-c", script.format("from mrecordlog_async import MultiRecordLog")))
    others = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert others == {*BARE, "mrecordlog_async"} - {"click"}  # the commands alone need it
    rooms = {name.split(".")[1] for name in loaded if name.startswith("mrecordlog_async.")}
    assert rooms.isdisjoint({"aiohttp", "cli", "client", "fastapi", "maintenance", "protocol"})
    assert rooms.isdisjoint({"service", "spark"})


def test_the_extra_for_spark_brings_what_functions_over_arrow_need() -> None:
    """A drain calls mapInArrow, which Spark refuses without the packages of its own extra `sql`."""
    of_spark = [each for each in map(Requirement, requires("pyspark") or ()) if each.marker is not None]
    needed = {each.name for each in of_spark if each.marker is not None and each.marker.evaluate({"extra": "sql"})}
    assert "pyarrow" in needed
    brought = {Requirement(each).name for each in PROJECT["optional-dependencies"]["spark"]}
    assert needed - {"numpy"} <= brought  # which pandas requires


TESTED = """
import pytest
from mrecordlog_async.testing import crash

@pytest.mark.asyncio
async def test_log(memory_log, memory_disk):
    await memory_log.append("q", b"x", create=True)
    assert len(list((await crash(memory_log)).range("q"))) == 1

def test_service(memory_service):
    pass
"""
PYTEST = ("pytest", "pytest-asyncio", "typing-extensions", "pluggy", "iniconfig", "packaging", "pygments")


def test_pytest_finds_the_fixtures_of_the_bare_package(python: Path, tmp_path: Path) -> None:
    """By the entry point of the wheel, with nothing else installed; a service says which extra it needs."""
    for name in PYTEST:  # links, to these packages alone
        for file in distribution(name).files or ():
            if not (link := tmp_path / "pytest" / file.parts[0]).is_symlink() and ".." not in file.parts:
                link.parent.mkdir(exist_ok=True)
                link.symlink_to(str(distribution(name).locate_file(file.parts[0])))
    (tmp_path / "test_it.py").write_text(TESTED)
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", "-q", "test_it.py"]
    environment = {"PYTHONPATH": str(tmp_path / "pytest"), "PATH": ""}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=environment)
    assert "1 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "pip install 'mrecordlog_async[server]'" in done.stdout


def test_a_bare_installation_is_small(python: Path) -> None:
    """The package and the two that it needs take 30 MB at most, with the compiled files that pip writes."""
    assert [re.split(r"[<>=]", each)[0] for each in PROJECT["dependencies"]] == list(BARE)
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    run(python, "-m", "compileall", "-q", str(packages))
    assert sum(path.stat().st_size for path in packages.rglob("*") if path.is_file()) < 30_000_000
