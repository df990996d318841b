"""Print what lets a shell complete commands and options.

  source <(mrecordlog completion bash)                                    # in ~/.bashrc
  source <(mrecordlog completion zsh)                                     # in ~/.zshrc
  mrecordlog completion fish > ~/.config/fish/completions/mrecordlog.fish

The script is made from the commands themselves, so it never offers what is not there; files and directories are
completed where a command takes them.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import Any

from mrecordlog_async.cli.exit_codes import FINE

Commands = dict[str, argparse.ArgumentParser]


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Describe the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "completion",
        help="print a script for shell completion",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(commands=subparsers.choices)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    commands: Commands = arguments.commands
    if arguments.shell == "fish":
        print("\n".join(_fish(commands)))
    else:
        head = ["autoload -U +X compinit && compinit", "autoload -U +X bashcompinit && bashcompinit"]
        print("\n".join([*(head if arguments.shell == "zsh" else []), *_bash(commands)]))
    return FINE


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return the long options of a command."""
    return sorted(option for option in parser._option_string_actions if option.startswith("--"))


def _bash(commands: Commands) -> Iterator[str]:
    yield "_mrecordlog() {"
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" words=""'
    yield '    if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f'        words="{" ".join(commands)} --help --version"'
    yield '    elif [ "${word:0:1}" = - ]; then'
    yield '        case "${COMP_WORDS[1]}" in'
    for name, parser in commands.items():
        yield f'            {name}) words="{" ".join(options_of(parser))}" ;;'
    yield "        esac"
    yield "    fi"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield "complete -o default -F _mrecordlog mrecordlog"


def _fish(commands: Commands) -> Iterator[str]:
    for name, parser in commands.items():
        summary = shlex.quote((parser.description or "").strip().partition("\n")[0])
        yield f"complete -c mrecordlog -n __fish_use_subcommand -a {name} -d {summary}"
        for option in options_of(parser):
            yield f"complete -c mrecordlog -n '__fish_seen_subcommand_from {name}' -l {option[2:]}"
