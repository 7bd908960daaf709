"""``cachetier completion``: what makes a shell complete this command, down to runs and steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from cachetier.cli.output import AsJson, echo, print_json, refuse

SHELLS = ("bash", "zsh", "fish")
WORDS = "words"  # what the scripts call: prints what the last of the words could become
FILES = ":files"  # the answer where the shell should complete the names of files

_BASH = """\
_cachetier() {
    local i word before line=$COMP_LINE kept words=()
    COMPREPLY=()
    for ((i = 0; i <= COMP_CWORD; i++)); do
        # bash ends words at = : @ too: what follows without a space is the same word
        word=${COMP_WORDS[i]} before=${line%%"${COMP_WORDS[i]}"*}
        if [ "$i" -gt 0 ] && [ -n "$word" ] && [ -z "$before" ]; then
            words[${#words[@]}-1]+=$word
        else
            words+=("$word")
        fi
        line=${line#"$before$word"}
    done
    word=${words[${#words[@]}-1]} kept=${word%"${COMP_WORDS[COMP_CWORD]}"}
    case ${COMP_WORDS[COMP_CWORD]} in [=:]*) kept=$word ;; esac
    kept=${kept%@}  # which bash leaves to us
    while IFS= read -r line; do
        if [ "$line" = ":files" ]; then compopt -o default; return; fi
        line=${line%%$'\\t'*}
        COMPREPLY+=("${line#"$kept"}")
    done < <(cachetier completion words -- "${words[@]:1}" 2>/dev/null)
}
complete -F _cachetier cachetier"""

_ZSH = """\
#compdef cachetier
_cachetier() {
    local line
    local -a found described
    found=("${(@f)$(cachetier completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ "$found[1]" == ":files" ]]; then compset -P "--*="; _files; return; fi
    for line in $found; do described+=("${${line//:/\\\\:}/$'\\t'/:}"); done
    _describe cachetier described
}
if [[ "$funcstack[1]" == "_cachetier" ]]; then
    _cachetier "$@"
else
    compdef _cachetier cachetier
fi"""

_FISH = """\
function __cachetier_complete
    set -l words (commandline -opc)
    set -e words[1]
    set -l current (commandline -ct)
    set -l found (cachetier completion words -- $words "$current" 2>/dev/null)
    if test "$found[1]" = ":files"
        set -l option (string match -r -- '^--[^=]*=' "$current")
        set -l path (string replace -r -- '^--[^=]*=' '' "$current")
        string join -- \\n "$option"(__fish_complete_path "$path")
    else
        string join -- \\n $found
    end
end
complete -c cachetier -f -a '(__cachetier_complete)'"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def completion(
    shell: Annotated[str, typer.Argument(help="bash, zsh or fish.")],
    words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    as_json: AsJson = False,
) -> None:
    """Print the script that makes a shell complete verbs, options, their values, runs and steps.

    Now and here: `source <(cachetier completion bash)`, the same for zsh, and in fish
    `cachetier completion fish | source`. For good: add that line to the shell's start file.

    JSON: `shell`, `script`.
    """
    if shell == WORDS:
        for line in candidates(words or [""]):
            echo(line)
    elif shell in SCRIPTS and as_json:
        print_json({"shell": shell, "script": SCRIPTS[shell]})
    elif shell in SCRIPTS:
        echo(*SCRIPTS[shell].split("\n"))
    else:
        from cachetier.nearest import nearest

        meant = nearest(shell, SHELLS)
        refuse(
            f"there is no completion for {shell!r}",
            f"Did you mean {meant}?" if meant else f"Choose one of {', '.join(SHELLS)}.",
            as_json=as_json,
        )


def candidates(words: Sequence[str]) -> Iterator[str]:
    """Yield what ``words[-1]`` could become, each with a tab and what it is; or ``FILES``.

    Silent, whatever is wrong with the words before it.
    """
    from typer._click import shell_completion
    from typer.main import get_command

    from cachetier.cli.app import app

    *args, last = words
    # An option that waits for its value is left out: typer reads no line that ends with one.
    waits = bool(args) and args[-1].startswith("-") and "=" not in args[-1]
    try:
        ctx = shell_completion._resolve_context(
            get_command(app), {}, "cachetier", args[:-1] if waits else args
        )
        found, incomplete = shell_completion._resolve_incomplete(ctx, args, last)
    except (typer.TyperException, typer.Exit):
        return
    option, sign, _ = last.partition("=")
    prefix = f"{option}=" if sign and option.startswith("--") else ""
    for item in found.shell_complete(ctx, incomplete):
        if item.type == "file":
            yield FILES
        else:
            yield f"{prefix}{item.value}\t{' '.join((item.help or '').split())}"
