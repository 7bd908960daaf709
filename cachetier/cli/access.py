"""Access: tokens, keys of S3 clients, sign-in links, ``whoami``; and the objects of S3 clients."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from cachetier_client.units import shown_size, shown_span

from cachetier.cli import options
from cachetier.cli.options import EXPIRY, one_of
from cachetier.cli.output import (
    UsageMistakeError,
    echo,
    past_proxies,
    show,
    show_rows,
    table,
)

if TYPE_CHECKING:
    from cachetier_client import Client

expires_option = options.option(
    "--expires",
    type=EXPIRY,
    default="90d",
    help="When it expires: 12h, 30d or `never`.",
)
HOW = one_of("HOW", "ours", "theirs", "release")


# --- tokens ---------------------------------------------------------------------------------------


@options.verb()
@options.argument("principal", help="The principal it belongs to: a [[principal]], or `owner`.")
@expires_option
@options.client
def create(principal: str, expires: float | None, client: Client, as_json: bool) -> None:
    """Make a token for a principal and print it, for the only time: the service keeps its hash.

    JSON: `token`, `id`, `principal`, `created_at`, `expires_at` (null: never).
    """
    made = client.create_token(principal, expires_seconds=expires)
    show(as_json, made, made["token"])
    if not as_json:
        ends = _ends(expires)
        echo(f"Token {made['id']} of {principal} {ends}; it is not shown again.", err=True)


@options.verb()
@options.client
def list_(client: Client, as_json: bool) -> None:
    """List the tokens and S3 keys that were made, but for their secrets; the owner's is a file.

    JSON: `tokens`: `id`, `kind` (`token`, `s3`), `principal`, `created_at`, `expires_at` of each.
    """
    found = client.tokens()
    now = time.time()
    rows = [
        (
            each["id"],
            each.get("kind", "token"),  # which older services do not say
            each["principal"],
            f"{shown_span(max(0.0, now - each['created_at']))} ago",
            _ending(each, now),
        )
        for each in found
    ]
    listed = table("<id", "<kind", "<principal", "made", "ends in", rows=rows) if rows else None
    none = "There is no token yet: `cachetier token create PRINCIPAL` makes one."
    show_rows(as_json, {"tokens": found}, listed, none)


@options.verb()
@options.argument("token_id", help="Which: see `token list`.")
@options.client
def revoke(token_id: str, client: Client, as_json: bool) -> None:
    """Revoke a token, or an S3 key: from the next request on it opens nothing.

    JSON: `revoked`.
    """
    client.revoke_token(token_id)
    show(as_json, {"revoked": token_id}, f"{token_id} is revoked")


@options.verb()
@options.client
def console(client: Client, as_json: bool) -> None:
    """Print a link that signs a browser in as the user who runs this, once, within a minute.

    The session may do what you may, and ends after 8 hours, after 30 minutes without a request,
    when you sign out, when the token ends that this was asked with, and when the service stops.

    JSON: `url`, `expires_seconds`.
    """
    made = client.link()
    show(as_json, made, made["url"])
    if not as_json:
        echo(f"Open it within {made['expires_seconds']:g} seconds; it works once.", err=True)


@options.verb()
@options.client
def whoami(client: Client, as_json: bool) -> None:
    """Say as whom the service knows the caller, and what that principal may do.

    JSON: `caller`: `principal`, `role`, `runs`, and `uid` and `pid`, or `token` and `address`;
    if it has a share, `used` and `limit` of `size_bytes`, `shards`, `open_puts`, `connections`.
    """
    caller = client.whoami()
    shown = {**caller, "runs": " ".join(caller["runs"])}
    for kind, each in shown.pop("share", {}).items():
        if isinstance(each, dict) and each["limit"] is not None:
            figure = shown_size if kind == "size_bytes" else str
            shown[kind.replace("_", " ")] = f"{figure(each['used'])} of {figure(each['limit'])}"
    width = max(map(len, shown))
    lines = (f"{name.ljust(width)}  {value}" for name, value in shown.items())
    show(as_json, {"caller": caller}, partial(echo, *lines))


def _ends(expires: float | None) -> str:
    return "never ends" if expires is None else f"ends in {shown_span(expires)}"


def _ending(token: dict[str, Any], now: float) -> str:
    if token["expires_at"] is None:
        return "never"
    left = token["expires_at"] - now
    return shown_span(left) if left > 0 else "ended"


# --- clients of S3 --------------------------------------------------------------------------------


@contextmanager
def _or_false(as_json: bool) -> Iterator[None]:
    """Have the shell that evaluates us fail as well: what follows would go past this node."""
    try:
        yield
    except (UsageMistakeError, click.exceptions.Exit) as error:
        if error.exit_code and not as_json:
            echo("false")
        raise


class _EvaluatedVerb(options.Verb):
    """A verb whose output a shell evaluates."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _or_false("--json" in args):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        with _or_false(ctx.params["as_json"]):
            super().invoke(ctx)


@options.verb(cls=_EvaluatedVerb)
@options.option("--mount", help="Refuse unless the key opens this mount.")
@options.option("--principal", help="The principal that gets the key, if not yours: for admins.")
@expires_option
@options.client
def env(
    mount: str | None,
    principal: str | None,
    expires: float | None,
    client: Client,
    as_json: bool,
) -> None:
    """Make a key, and print what has any S3 client use it here: eval "$(cachetier s3 env)".

    Each call makes a key of its own, and shows its secret for the only time: let the processes of a
    job share one. `cachetier token list` shows keys, `cachetier token revoke` ends one.

    JSON: `environment`, `id`, `principal`, `created_at`, `expires_at` (null: never), `mounts`:
    `name`, `bucket`, `prefix` of each.
    """
    made = client.create_s3_key(principal, mount=mount, expires_seconds=expires)
    environment = {  # which AWS's own clients read, and most others too
        "AWS_ENDPOINT_URL_S3": made["url"],
        "AWS_ACCESS_KEY_ID": made["id"],
        "AWS_SECRET_ACCESS_KEY": made["secret"],
        "AWS_REGION": made["region"],
        "AWS_DEFAULT_REGION": made["region"],
        **past_proxies(urlsplit(made["url"]).hostname or ""),
    }
    shown = "id", "principal", "created_at", "expires_at", "mounts"
    document = {"environment": environment, **{name: made[name] for name in shown}}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    lines += ["unset AWS_SESSION_TOKEN"]  # of another key: it would be sent along
    show(as_json, document, partial(echo, *lines))
    if not as_json:
        places = ", ".join(f"s3://{each['bucket']}/{each['prefix']}" for each in made["mounts"])
        opens = f"opens {places}" if places else "opens no mount: see `runs` of the principal"
        echo(f"Key {made['id']} of {made['principal']} {_ends(expires)}; it {opens}.", err=True)


@options.verb()
@options.argument(
    "how",
    type=HOW,
    help="`ours` replaces what is there, `theirs` drops our version, `release` lets a marker go.",
)
@options.argument("mount", help="The mount of the S3 door, by its name.")
@options.argument("key", help="The whole key, as the bucket has it.")
@options.client
def resolve(how: str, mount: str, key: str, client: Client, as_json: bool) -> None:
    """Decide about an object that cannot go to the bucket by itself.

    In conflict: it was put with a condition and somebody else changed it in the bucket, or the
    bucket does not take it. `ours` sends it again; what was put under its key since goes on. A
    marker may wait for what other nodes put before it, which may be gone for good: after `release`
    whoever reads it in the bucket may miss what it speaks of.

    JSON: `key`, and of a conflict `replaces`: the ETag of what the bucket has by now, empty for
    nothing.
    """
    done = client.settle_object(mount, key, how)
    there = done.get("replaces") or "nothing"
    does = {
        "ours": f"our version will replace {there}",
        "theirs": f"our version is dropped; {there} stays",
        "release": "waits no more",
    }
    show(as_json, done, f"{key}: {does[how]}")
