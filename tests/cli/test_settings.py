"""Settings of `serve`: where a value comes from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mrecordlog_async import QueueOptions
from mrecordlog_async.cli.errors import UsageError
from mrecordlog_async.cli.settings import of_kubernetes
from tests.cli.running import settings_of


@pytest.mark.parametrize("place", ["variable", "file"])
def test_recycling_is_on_unless_one_of_the_places_switches_it_off(tmp_path: Path, place: str) -> None:
    """The environment and the TOML file reach a setting that has no option."""
    assert settings_of()["recycle"] is True
    config = tmp_path / "settings.toml"
    config.write_text("recycle = false\n")
    words = ["--config", str(config)] if place == "file" else []
    environment = {"MRECORDLOG_RECYCLE": "false"} if place == "variable" else {}
    assert settings_of(*words, environment=environment)["recycle"] is False


def test_a_flag_overrides_a_variable_and_a_variable_the_file(tmp_path: Path) -> None:
    """What is nearer to the person who starts the service counts."""
    config = tmp_path / "settings.toml"
    config.write_text('port = 1\nname = "file"\nhost = "file"\n')
    environment = {"MRECORDLOG_PORT": "2", "MRECORDLOG_NAME": "variable"}
    found = settings_of("--config", str(config), "--port", "3", environment=environment)
    assert (found["port"], found["name"], found["host"]) == (3, "variable", "file")


def test_the_variables_of_the_compiled_room_are_no_mistake() -> None:
    """The service starts in an environment that chooses the twins, or how the package is compiled."""
    environment = {"MRECORDLOG_PURE": "1", "MRECORDLOG_COMPILE": "off"}
    assert settings_of(environment=environment) == settings_of()


@pytest.mark.parametrize(
    ("variable", "advice"),
    [("MRECORDLOG_PRT", "; did you mean MRECORDLOG_PORT?"), ("MRECORDLOG_NOSUCH", "; known: MRECORDLOG_")],
)
def test_an_unknown_variable_is_compared_without_its_prefix(variable: str, advice: str) -> None:
    """A misspelt name brings the nearest one; a name that resembles none brings the list, not any variable."""
    with pytest.raises(UsageError, match=re.escape(f"{variable} is not a setting{advice}")):
        settings_of(environment={variable: "1"})


def test_an_empty_variable_is_not_set() -> None:
    """As docker-compose passes a variable that has no value."""
    empty = {f"MRECORDLOG_{name}": "" for name in ("PORT", "MEMORY_BYTES", "TOKEN_FILE", "PERSIST", "CONFIG", "NAME")}
    assert settings_of(environment=empty) == settings_of()


OF_KUBERNETES = {
    "MRECORDLOG_PORT": "tcp://10.96.0.12:8080",
    "MRECORDLOG_SERVICE_HOST": "10.96.0.12",
    "MRECORDLOG_SERVICE_PORT": "8080",
    "MRECORDLOG_SERVICE_PORT_HTTP": "8080",
    "MRECORDLOG_PORT_8080_TCP": "tcp://10.96.0.12:8080",
    "MRECORDLOG_PORT_8080_TCP_PROTO": "tcp",
    "MRECORDLOG_PORT_8080_TCP_PORT": "8080",
    "MRECORDLOG_PORT_8080_TCP_ADDR": "10.96.0.12",
}
"""What the containers of a namespace get that has a Service named mrecordlog."""


@pytest.mark.parametrize("service", ["", "METRICS_"])
def test_variables_of_kubernetes_are_no_settings(service: str) -> None:
    """They are recognized by their values, whatever the rest of the Service's name is; a setting beside them counts."""
    found = {name.replace("MRECORDLOG_", f"MRECORDLOG_{service}", 1): text for name, text in OF_KUBERNETES.items()}
    assert of_kubernetes(found | {"PATH": "/bin"}) == sorted(found)
    given = settings_of(environment=found | {"MRECORDLOG_SEGMENT_BYTES": "1M"})
    assert given == settings_of("--segment-bytes", "1M")
    assert of_kubernetes({"MRECORDLOG_PORT": "9000", "MRECORDLOG_SERVICE_HOST": "10.96.0.12"}) == []


def test_a_port_that_somebody_sets_counts_beside_a_service_of_kubernetes() -> None:
    """A container's own variable replaces the one of the same name that it would get, and no other."""
    found = OF_KUBERNETES | {"MRECORDLOG_PORT": "9000"}
    assert of_kubernetes(found) == sorted(OF_KUBERNETES.keys() - {"MRECORDLOG_PORT"})
    assert settings_of(environment=found)["port"] == 9000


def test_a_file_in_the_home_directory_is_found_without_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a variable and in the TOML file, no shell replaces `~/`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "settings.toml").write_text('tls_cert = "~/cert.pem"\n')
    found = settings_of(environment={"MRECORDLOG_CONFIG": "~/settings.toml", "MRECORDLOG_TOKEN_FILE": "~/tokens"})
    assert (found["tls_cert"], found["token_file"]) == (str(tmp_path / "cert.pem"), str(tmp_path / "tokens"))


DECLARED = """
[queues.audit]
keep = "until_acknowledged"
max_bytes = "1GiB"
keep_at_least = "1h"

[queues.clicks]

[consumers]
audit = ["search", "archive"]
"""


def gathered(tmp_path: Path, content: str, environment: dict[str, str] | None = None) -> dict[str, object]:
    """Return the settings of a file."""
    config = tmp_path / "settings.toml"
    config.write_text(content)
    return settings_of("--config", str(config), environment=environment or {})


def test_queues_and_consumers_are_tables_of_the_file_or_json(tmp_path: Path) -> None:
    """Sizes and times are written with their units, as everywhere; a variable overrides the table."""
    values = gathered(tmp_path, DECLARED)
    audit = QueueOptions(keep="until_acknowledged", max_bytes=1 << 30, keep_at_least=3_600)
    assert values["queues"] == {"audit": audit, "clicks": QueueOptions()}
    assert values["consumers"] == {"audit": ("search", "archive")}
    variables = {"MRECORDLOG_QUEUES": '["a, b", "c"]', "MRECORDLOG_CONSUMERS": '{"c": ["one"]}'}
    values = gathered(tmp_path, DECLARED, variables)
    assert (values["queues"], values["consumers"]) == ({"a, b": None, "c": None}, {"c": ("one",)})
    assert gathered(tmp_path, 'queues = ["a, b", "c"]')["queues"] == {"a, b": None, "c": None}
    assert gathered(tmp_path, "")["consumers"] is None


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("consumers = 1000", r"settings.toml: consumers: consumers must map queues to names .*, not int"),
        (
            '[consumers]\naudit = "search"',
            r"consumers\['audit'\] must be a list of names, not 'search'; pass \['search'\]",
        ),
        ("[consumers]\naudit = [1]", r"must be a str, not int"),
        ("queues = 1000", r"1000 must be a list of queues, or a table of their options"),
        ("queues = [1]", r"a queue is named by a string, not 1"),
        ('queues = [""]', r"is empty"),
        ('[queues]\naudit = "7d"', r"queue 'audit': its options are a table such as .*, not '7d'"),
        ('[queues.audit]\nmax_agee = "7d"', r"queue 'audit': 'max_agee' is not an option; did you mean max_age\?"),
        ('[queues.audit]\nmax_age = "7x"', r"queue 'audit': '7x' is not a time such as"),
        ("[queues.audit]\nmax_age = 2026-11-22", r"queue 'audit': '2026-11-22' is not a time such as"),
        ('[queues.audit]\nmax_records = "5"', r"queue 'audit': max_records must be None or an integer"),
        ('[queues.audit]\nkeep_at_least = "1h"', r"queue 'audit': keep_at_least needs keep='until_acknowledged'"),
        ("[port]\nfirst = 1", r"port must be a string, a number, a list, true or false"),
    ],
)
def test_what_declares_nothing_is_named_with_its_queue(tmp_path: Path, content: str, sentence: str) -> None:
    """An error of the file says which queue and which option it is in."""
    with pytest.raises(UsageError, match=sentence):
        gathered(tmp_path, content)
