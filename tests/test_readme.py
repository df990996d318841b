"""The README's commands are the real ones, and it stays short. Its blocks run in tests/docs."""

from __future__ import annotations

from pathlib import Path

from tests.docs.blocks import Reader, blocks

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


PROGRAMS = [block for block in blocks(ROOT / "README.md") if block.language == "python"]


def test_the_first_program_of_the_readme_prints_what_it_stored(tmp_path: Path) -> None:
    """A reader can paste the program and see it work."""
    assert Reader(tmp_path).run(PROGRAMS[0]) == "0 b'two coffees'\n"


def test_the_application_in_the_readme_can_be_pasted(tmp_path: Path) -> None:
    """Names, imports and calls in it exist; nothing is opened before the application starts."""
    application = next(block for block in PROGRAMS if "FastAPI" in block.text)
    assert Reader(tmp_path).run(application) == ""
    assert list(tmp_path.iterdir()) == []


def test_ci_runs_the_readmes_test_command() -> None:
    """CI runs the command that the README gives."""
    command = "python3 -m venv .venv && .venv/bin/pip install -e '.[dev]' && .venv/bin/pytest -n auto --dist loadfile"
    assert f"    {command}\n" in README
    assert f"    {command}\n" in (ROOT / "CONTRIBUTING.md").read_text()
    assert f"\n{command}\n" in (ROOT / ".ci" / "run").read_text()


def test_the_readme_fits_on_two_screens() -> None:
    """The README has what a newcomer needs first; everything else is in docs."""
    assert len(README.splitlines()) <= 130
