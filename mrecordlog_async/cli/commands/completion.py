"""Print a script that completes commands, options and values in a shell.

  source <(mrecordlog completion bash)    # in ~/.bashrc
  source <(mrecordlog completion zsh)    # in ~/.zshrc
  mrecordlog completion fish > ~/.config/fish/completions/mrecordlog.fish

Commands and options are in the script, so create it again after an update of the package. Queues and consumers are
those of the log that the line names, a directory or a service, if they can be found within a second. Files and
directories complete as usual.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from mrecordlog_async.cli.shell.completed_word import BREAKS, LINE, SHELL
from mrecordlog_async.cli.shell.exit_codes import FINE
from mrecordlog_async.cli.shell.parser import Parser, choice, typed

Commands = dict[str, Parser]

SHELLS = ("bash", "zsh", "fish")
NAMED = "bash, zsh or fish"


def add_parser(command_line: Parser) -> Parser:
    """Describe the command."""
    parser = command_line.add_command("completion", "Print a script for completion in bash, zsh or fish", __doc__)
    parser.add_argument("shell", type=typed(choice(*SHELLS)), known=lambda: SHELLS, metavar="SHELL", help=NAMED)
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
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" words="" found'
    yield "    COMPREPLY=()"
    yield '    if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f'        words="{" ".join(commands)} --help --version"'
    yield '    elif [ "${word:0:1}" = - ]; then'
    yield '        case "${COMP_WORDS[1]}" in'
    for name, parser in commands.items():
        yield f'            {name}) words="{" ".join(parser.options())}" ;;'
    yield "        esac"
    yield "    else"
    yield '        while IFS= read -r found; do COMPREPLY+=("$found"); done < <('
    yield f'            export {LINE}="${{COMP_LINE:0:$COMP_POINT}}" {BREAKS}="${{COMP_WORDBREAKS-}}"'
    yield '            "${COMP_WORDS[0]/#\\~/$HOME}" 2>/dev/null)'
    yield "        return"
    yield "    fi"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield "complete -o default -F _mrecordlog mrecordlog"


def _fish(commands: Commands) -> Iterator[str]:
    asked = f"env {LINE}=(commandline -cp | string collect) {SHELL}=fish mrecordlog 2>/dev/null"
    yield "function __mrecordlog_find"
    yield f"    set -g __mrecordlog_found ({asked})"
    yield "    test (count $__mrecordlog_found) -gt 0"  # if nothing is found, files complete
    yield "end"
    yield "complete -c mrecordlog -f -n 'not __fish_use_subcommand; and __mrecordlog_find' -a '$__mrecordlog_found'"
    for name, parser in commands.items():
        summary = shlex.quote((parser.description or "").strip().partition("\n")[0])
        yield f"complete -c mrecordlog -n __fish_use_subcommand -a {name} -d {summary}"
        for option in parser.options():
            yield f"complete -c mrecordlog -n '__fish_seen_subcommand_from {name}' -l {option[2:]}"
