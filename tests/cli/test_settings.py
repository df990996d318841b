"""Settings of `serve`: where a value comes from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mrecordlog_async.cli.shell.exit_codes import UsageError
from mrecordlog_async.cli.shell.parser import Parser
from mrecordlog_async.cli.shell.settings import add_settings, gather


@pytest.mark.parametrize("place", ["flag", "variable", "file"])
def test_recycling_is_on_unless_one_of_the_places_switches_it_off(tmp_path: Path, place: str) -> None:
    """The flag, the environment and the TOML file reach the setting."""
    parser = Parser()
    add_settings(parser)
    assert gather(parser.parse_args([]), {})["recycle"] is True
    config = tmp_path / "settings.toml"
    config.write_text("recycle = false\n")
    words = {"flag": ["--no-recycle"], "variable": [], "file": ["--config", str(config)]}[place]
    environment = {"MRECORDLOG_RECYCLE": "false"} if place == "variable" else {}
    assert gather(parser.parse_args(words), environment)["recycle"] is False


def test_the_variables_of_the_compiled_room_are_no_mistake() -> None:
    """The service starts in an environment that chooses the twins, or how the package is compiled."""
    parser = Parser()
    add_settings(parser)
    environment = {"MRECORDLOG_PURE": "1", "MRECORDLOG_COMPILE": "off"}
    assert gather(parser.parse_args([]), environment) == gather(parser.parse_args([]), {})


@pytest.mark.parametrize(
    ("variable", "advice"),
    [("MRECORDLOG_PRT", "; did you mean MRECORDLOG_PORT?"), ("MRECORDLOG_NOSUCH", "; known: MRECORDLOG_")],
)
def test_an_unknown_variable_is_compared_without_its_prefix(variable: str, advice: str) -> None:
    """A misspelt name brings the nearest one; a name that resembles none brings the list, not any variable."""
    parser = Parser()
    add_settings(parser)
    with pytest.raises(UsageError, match=re.escape(f"{variable} is not a setting{advice}")):
        gather(parser.parse_args([]), {variable: "1"})
