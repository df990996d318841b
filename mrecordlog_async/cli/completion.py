"""Completion in a shell: the scripts for bash, zsh and fish, and what they call.

click finds the argument at the cursor. The scripts for bash and fish are ours: bash ends a word at the colons of a URL
or of a queue's name, and click's script for fish cuts a name at a comma.
"""

from __future__ import annotations

import os
import shlex
from typing import Any

import click
from click.shell_completion import CompletionItem, FishComplete, ShellComplete, ZshComplete, add_completion_class

from mrecordlog_async.cli.params import argument, command

VARIABLE = "_MRECORDLOG_COMPLETE"


class _OfLine(ShellComplete):
    """Completes the last word of COMP_LINE, the line up to the cursor."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one at the cursor, and that one."""
        words, _ = split(os.environ["COMP_LINE"])
        return words[1:-1], words[-1]


@add_completion_class
class _Bash(_OfLine):
    name = "bash"
    source_template = """\
%(complete_func)s() {
    local found
    COMPREPLY=()
    while IFS= read -r found; do COMPREPLY+=("$found"); done < <(
        export COMP_LINE="${COMP_LINE:0:$COMP_POINT}" COMP_BREAKS="${COMP_WORDBREAKS-}" %(complete_var)s=bash_complete
        "${COMP_WORDS[0]/#\\~/$HOME}" 2>/dev/null)
}
complete -o default -F %(complete_func)s %(prog_name)s
"""

    def format_completion(self, item: CompletionItem) -> str:
        """Return what bash inserts: the rest of the word after the last character at which it begins a new one."""
        words, open_quote = split(os.environ["COMP_LINE"])
        if open_quote:
            return str(item.value)
        breaks = [each for each in ":=" if each in os.environ.get("COMP_BREAKS", "")]
        return shlex.quote(item.value[max((words[-1].rfind(each) + 1 for each in breaks), default=0) :])


@add_completion_class
class _Fish(_OfLine, FishComplete):
    name = "fish"
    source_template = """\
function %(complete_func)s
    set -g %(complete_func)s_found (env COMP_LINE=(commandline -cp | string collect) \
%(complete_var)s=fish_complete %(prog_name)s 2>/dev/null)
    test (count $%(complete_func)s_found) -gt 0
end
complete -c %(prog_name)s -f -n %(complete_func)s -a '$%(complete_func)s_found'
"""  # where nothing is found, files complete

    def format_completion(self, item: CompletionItem) -> str:
        """Return the value and, after a tab, what it means."""
        return f"{item.value}\t{item.help}" if item.help else str(item.value)


SCRIPTS = {"bash": _Bash, "zsh": ZshComplete, "fish": _Fish}


@command()
@argument("shell", metavar="SHELL", type=click.Choice(list(SCRIPTS)), help="bash, zsh or fish.")
def completion(shell: str) -> int:
    """Print a script that completes commands, options and values in a shell.

      source <(mrecordlog completion bash)    # in ~/.bashrc
      source <(mrecordlog completion zsh)    # in ~/.zshrc
      mrecordlog completion fish > ~/.config/fish/completions/mrecordlog.fish

    Queues and consumers are those of the log that the line names, a directory or a service, if they can be found within
    a second. Files and directories complete as usual.
    """
    cli = click.get_current_context().find_root().command
    print(ShellComplete.source(SCRIPTS[shell](cli, {}, "mrecordlog", VARIABLE)), end="")
    return 0


def complete(cli: click.Group, asked: str) -> None:
    """Print the candidates for the last word; paths are left to bash and fish, which complete them themselves."""
    shell = asked.partition("_")[0]
    given: dict[str, Any] = {}
    found = SCRIPTS[shell](cli, {"obj": given}, "mrecordlog", VARIABLE)
    words, word = found.get_completion_args()
    given["words"] = words
    if words and words[0] not in cli.list_commands(click.Context(cli)) and not words[0].startswith("-"):
        return  # click would offer the commands again
    items = found.get_completions(words, word)
    shown = [item for item in items if shell == "zsh" or item.type == "plain"]
    print("".join(f"{found.format_completion(item)}\n" for item in shown), end="", flush=True)


def split(line: str) -> tuple[list[str], str]:
    """Return the words of an unfinished line, and the quote that is still open: "" for none."""
    if line.endswith("\\") and not line.endswith("\\\\"):
        line = line[:-1]  # the character that it quotes is still to come
    for open_quote in ("", "'", '"'):
        try:
            words = shlex.split(line + open_quote)
        except ValueError:
            continue  # another quote is open
        begins_new = not open_quote and (not line or line[-1].isspace())
        return ([*words, ""] if begins_new else words), open_quote
    return split(line[:-1])
