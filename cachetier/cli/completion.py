"""What makes a shell complete this command, down to runs and steps: ``--completion SHELL``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from click import UsageError
from click.shell_completion import ShellComplete, add_completion_class

from cachetier.cli.app import app
from cachetier.cli.main import COMPLETE
from cachetier.cli.output import refuse
from cachetier.nearest import nearest
from cachetier.visible import visible

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
    done < <(_CACHETIER_COMPLETE=bash_complete cachetier "${words[@]:1}" 2>/dev/null)
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -F _cachetier cachetier"""

_ZSH = """\
#compdef cachetier
_cachetier() {
    local line answer
    local -a found described
    answer=$(_CACHETIER_COMPLETE=zsh_complete cachetier "${(@)words[2,CURRENT]}" 2>/dev/null)
    found=("${(@f)answer}")
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
    set -l found (env _CACHETIER_COMPLETE=fish_complete cachetier $words "$current" 2>/dev/null)
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


def script_of(shell: str) -> str:
    """Return the script of a shell; refuse one that there is none for."""
    if shell not in SCRIPTS:
        meant = nearest(shell, SCRIPTS)
        refuse(
            f"there is no completion for {shell!r}",
            f"Did you mean {meant}?" if meant else f"Choose one of {', '.join(SCRIPTS)}.",
        )
    return SCRIPTS[shell]


class _Completion(ShellComplete):
    """The completion that click runs for a script: the arguments of the command are the words."""

    def source(self) -> str:
        return self.source_template

    def complete(self) -> str:
        found = [visible(line) for line in candidates(sys.argv[1:])]
        if not found:
            sys.exit(0)  # click would print an empty line, which is a candidate
        return "\n".join(found)


def register() -> None:
    """Have click complete by our scripts: they join the words that bash cuts at = and :."""
    for shell, script in SCRIPTS.items():
        add_completion_class(type(shell, (_Completion,), {"source_template": script}), shell)


def candidates(words: Sequence[str]) -> Iterator[str]:
    """Yield what ``words[-1]`` could become, each with a tab and what it is; or ``FILES``."""
    *args, last = words
    option, sign, _ = last.partition("=")
    prefix = f"{option}=" if sign and option.startswith("--") else ""
    try:
        found = ShellComplete(app, {}, "cachetier", COMPLETE).get_completions(args, last)
    except UsageError:  # of a verb that there is not
        return
    for item in found:
        if item.type == "file":
            yield FILES
        else:
            yield f"{prefix}{item.value}\t{' '.join((item.help or '').split())}"
