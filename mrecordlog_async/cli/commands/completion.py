"""Print a script that completes commands and options in a shell.

  source <(mrecordlog completion bash)    # in ~/.bashrc
  source <(mrecordlog completion zsh)    # in ~/.zshrc
  mrecordlog completion fish > ~/.config/fish/completions/mrecordlog.fish

The script is generated from the commands, so it offers only what exists. Files and directories complete as usual.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from mrecordlog_async.cli.exit_codes import FINE
from mrecordlog_async.cli.parser import CommandLine, Parser, choice, typed

Commands = dict[str, Parser]


def add_parser(command_line: CommandLine) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("completion", "Print a script for completion in bash, zsh or fish", __doc__)
    shell = typed(choice("bash", "zsh", "fish"))
    parser.add_argument("shell", type=shell, metavar="SHELL", help="bash, zsh or fish")
    parser.set_defaults(commands=command_line.commands)
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


def _bash(commands: Commands) -> Iterator[str]:
    yield "_mrecordlog() {"
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" words=""'
    yield '    if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f'        words="{" ".join(commands)} --help --version"'
    yield '    elif [ "${word:0:1}" = - ]; then'
    yield '        case "${COMP_WORDS[1]}" in'
    for name, parser in commands.items():
        yield f'            {name}) words="{" ".join(parser.options())}" ;;'
    yield "        esac"
    yield "    fi"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield "complete -o default -F _mrecordlog mrecordlog"


def _fish(commands: Commands) -> Iterator[str]:
    for name, parser in commands.items():
        summary = shlex.quote((parser.description or "").strip().partition("\n")[0])
        yield f"complete -c mrecordlog -n __fish_use_subcommand -a {name} -d {summary}"
        for option in parser.options():
            yield f"complete -c mrecordlog -n '__fish_seen_subcommand_from {name}' -l {option[2:]}"
