"""One token file serves the service, the command line and the Spark jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mrecordlog_async.tokens import TokenFileError, read_private_tokens, read_token

FIRST = "0123456789abcdef0123456789abcdef"
SECOND = "fedcba9876543210#fedcba987654321"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"# the token of wal-1\n\n  {FIRST}  # since January\n{SECOND} # holds a #\n")
    path.chmod(0o600)
    return path


def test_every_reader_finds_the_same_tokens(path: Path) -> None:
    """The service accepts all of them, clients and jobs send the first."""
    assert read_private_tokens(str(path)) == {FIRST.encode(), SECOND.encode()}
    assert read_token(str(path)) == FIRST


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        (f"{FIRST}\n", 0o644, "chmod 600"),
        ("short\n", 0o600, "at least 16 characters"),
        ("# nothing\n", 0o600, "holds no token"),
        (f"{FIRST} {SECOND}\n", 0o600, "one token per line"),
    ],
)
def test_a_file_that_cannot_be_used_says_what_to_do(path: Path, content: str, mode: int, problem: str) -> None:
    """The message names the file."""
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(TokenFileError, match=problem) as raised:
        read_private_tokens(str(path))
    assert str(path) in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The message has the file and the operating system's reason."""
    with pytest.raises(TokenFileError, match="none: cannot read the token file: No such file"):
        read_token(str(tmp_path / "none"))


def test_a_credential_of_systemd_may_show_the_mask_of_its_access_list(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With DynamicUser=, LoadCredential= leaves mode 0440. Elsewhere that is a group that can read the file."""
    path.chmod(0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_private_tokens(str(path)) == {FIRST.encode(), SECOND.encode()}
    path.chmod(0o444)
    with pytest.raises(TokenFileError, match="other users can read it"):
        read_private_tokens(str(path))
    path.chmod(0o440)
    for elsewhere in ("", str(tmp_path / "credentials")):
        monkeypatch.setenv("CREDENTIALS_DIRECTORY", elsewhere)
        with pytest.raises(TokenFileError, match="other users can read it"):
            read_private_tokens(str(path))
