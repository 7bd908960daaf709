"""The command ``cachetier``: a group of verbs, each imported when it is called.

What is wrong with a command line is answered here: what it is, and what was probably meant.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from cachetier import __version__
from cachetier.cli.main import COMPLETE
from cachetier.cli.options import CONTEXT, SHELL, named, options_of, renamed, usage, usage_hint
from cachetier.cli.output import UsageMistakeError, fail
from cachetier.cli.verbs import ALSO_CALLED, GROUPS, RENAMED, SECTIONS, VERBS
from cachetier.nearest import nearest
from cachetier.visible import visible

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


SPELT_NOW = {"-?": "--help", "--ack": "--level", "--deadline": "--timeout"}
WITH_ALL = "cachetier.with_all"  # `help all`: a line for each verb


class VerbGroup(click.Group):
    """All verbs, or those of a group (``token``), from the table in ``verbs``."""

    def __init__(self, name: str, help: str, prefix: str = "", **extra: Any) -> None:
        super().__init__(name, help=help, **extra)
        self._prefix = prefix

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["VERB [OPTIONS]"]

    # --- which verbs there are -------------------------------------------------------------------

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for rows in self._sections().values() for name in rows]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = f"{self._prefix}{cmd_name}"
        return built(name) if name in VERBS or name in GROUPS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        (title, rows), *more = self._sections().items()
        shown = [(title, rows), *(more if ctx.meta.get(WITH_ALL) else ())]
        for title, rows in shown:
            with formatter.section(title):
                formatter.write_dl(list(rows.items()), col_max=12)
        if len(shown) <= len(more):
            with formatter.section("More, a line each by `cachetier help all`"):
                formatter.write_dl([(title, ", ".join(rows)) for title, rows in more])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the verbs from the table: click would import them all for their help."""
        from click.shell_completion import CompletionItem

        lines = {name: line for rows in self._sections().values() for name, line in rows.items()}
        found = [CompletionItem(name, help=line) for name, line in lines.items()]
        return [
            *(each for each in found if each.value.startswith(incomplete)),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]

    def _sections(self) -> dict[str, dict[str, str]]:
        """Return the verbs of each section with their lines; a group is one of the verbs."""
        shown: dict[str, dict[str, str]] = {}
        for title, verbs in SECTIONS.items():
            for name, (_, line) in verbs.items():
                if not name.startswith(self._prefix):
                    continue
                first, _, rest = name.removeprefix(self._prefix).partition(" ")
                rows = shown.setdefault("Verbs" if self._prefix else title, {})
                rows[first] = GROUPS[f"{self._prefix}{first}"] if rest else line
        return shown

    # --- what is wrong ---------------------------------------------------------------------------

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["help"]:
            ctx.meta[WITH_ALL] = args[1:] == ["all"]
            args = [*([] if ctx.meta[WITH_ALL] else args[1:]), "--help"]
        return super().parse_args(ctx, args)

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        with _reported_usage(list(args)):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _reported_usage(ctx.args):
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None:
            raise self._unknown(ctx, args[0])
        return super().resolve_command(ctx, args)

    def _unknown(self, ctx: click.Context, verb: str) -> UsageMistakeError:
        """Return the error of a verb that there is not; it names the one that was meant."""
        command, known = ctx.command_path, self.list_commands(ctx)
        if (now := RENAMED.get(f"{self._prefix}{verb}")) is not None:
            return renamed(f"{command} {verb}", now, ctx)
        also = ALSO_CALLED.get(verb.lower())
        meant = also if also in known else nearest(verb, known)
        listed = f"`{command} --help` lists the verbs."
        hint = f"Did you mean `{command} {meant}`?" if meant else listed
        return UsageMistakeError(f"there is no verb `{command} {verb}`", hint, ctx)


def built(name: str) -> click.Command:
    """Return the verb, or the group, of this name. There must be one."""
    if name in GROUPS:
        return VerbGroup(name.rpartition(" ")[2], GROUPS[name], f"{name} ")
    module, _, function = VERBS[name][0].partition(":")
    found: click.Command = getattr(import_module(f"cachetier.cli.{module}"), function)
    return found


@contextmanager
def _reported_usage(words: list[str]) -> Iterator[None]:
    """Turn a usage error of click into an error, a next move and exit code 2; Ctrl-C into 130.

    Args:
        words: Those of the command line; ``--json`` among them asks for a document too.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        message, hint = _explained(error)
        fail("--json" in words, "invalid_request", message, hint)


def _explained(error: click.UsageError) -> tuple[str, str]:
    """Return what is wrong and what to do."""
    ctx, option = error.ctx, getattr(error, "option_name", "")
    if isinstance(error, UsageMistakeError):
        help_of = f"`{ctx.command_path if ctx else 'cachetier'} --help`"
        return error.message, error.hint or f"{help_of} says what it takes."
    if isinstance(error, click.BadOptionUsage) or ctx is None:
        what = f"{option} needs a value" if option else error.format_message()
        return what, f"Give it one: {option} VALUE" if option else "See `cachetier --help`."
    if isinstance(error, click.NoSuchOption):
        if re.fullmatch(r"-\d+", option):
            return f"STEP: {option} is negative, and steps begin at 0", usage_hint(ctx)
        return f"`{ctx.command_path}` has no option {option}", _option_meant(ctx, option)
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"`{ctx.command_path}` needs {named(error.param)}", f"Give it: {usage(ctx)}"
    return error.format_message(), usage_hint(ctx)


def _option_meant(ctx: click.Context, option: str) -> str:
    known = options_of(ctx)
    if "--set" in known and option.replace("_", "-") not in known:
        from cachetier.config.settings import SETTINGS

        setting = option.removeprefix("--").replace("-", "_")
        if setting in SETTINGS:
            return f"Set it: --set {setting}=VALUE"
    if option in ("--run", "--step") and "RUN" in usage(ctx):
        return usage_hint(ctx)
    meant = SPELT_NOW.get(option) or nearest(option, known)
    if meant:
        return f"Did you mean {meant}?"
    if isinstance(ctx.command, VerbGroup):
        return f"Options of a verb come after it: {ctx.command_path} VERB {option}"
    return f"`{ctx.command_path} --help` lists its options."


app = VerbGroup(
    "cachetier",
    "Node-local write-back cache for checkpoints: NVMe speed now, object storage behind it.",
    epilog="`cachetier VERB --help`, or `cachetier help VERB`, describes it. CACHETIER_URL says"
    " where the service is.",
    context_settings=CONTEXT,
)


def _print_script(ctx: click.Context, _option: click.Parameter, shell: str | None) -> None:
    if shell is not None and not ctx.resilient_parsing:
        click.echo(SCRIPTS[shell])
        ctx.exit()


click.option(
    "--completion",
    type=SHELL,
    is_eager=True,
    expose_value=False,
    callback=_print_script,
    help="Print what makes bash, zsh or fish complete this command: source it.",
)(app)
click.version_option(__version__, message="cachetier %(version)s")(app)


# --- completion -----------------------------------------------------------------------------------

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


def register() -> None:
    """Have click complete by our scripts: they join the words that bash cuts at = and :."""
    from click.shell_completion import ShellComplete, add_completion_class

    class Completion(ShellComplete):
        """The completion that click runs for a script: the arguments are the words."""

        def source(self) -> str:
            return self.source_template

        def complete(self) -> str:
            found = [visible(line) for line in candidates(sys.argv[1:])]
            if not found:
                sys.exit(0)  # click would print an empty line, which is a candidate
            return "\n".join(found)

    for shell, script in SCRIPTS.items():
        add_completion_class(type(shell, (Completion,), {"source_template": script}), shell)


def candidates(words: Sequence[str]) -> Iterator[str]:
    """Yield what ``words[-1]`` could become, each with a tab and what it is; or ``FILES``."""
    from click.shell_completion import ShellComplete

    *args, last = words
    option, sign, _ = last.partition("=")
    prefix = f"{option}=" if sign and option.startswith("--") else ""
    try:
        found = ShellComplete(app, {}, "cachetier", COMPLETE).get_completions(args, last)
    except click.UsageError:  # of a verb that there is not
        return
    for item in found:
        if item.type == "file":
            yield FILES
        else:
            yield f"{prefix}{item.value}\t{' '.join((item.help or '').split())}"
