"""``cachetier token``, ``link`` and ``whoami``: who may come in by HTTP, and as whom one came."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from cachetier_client.units import parsed_span, shown_size, shown_span

from cachetier.cli.output import (
    AsJson,
    Url,
    console,
    echo,
    print_json,
    reach,
    read_option,
    reported,
    show,
    table,
)


def create(
    principal: Annotated[str, typer.Argument(help="Whose it is: a [[principal]], or `owner`.")],
    expires: Annotated[
        str, typer.Option("--expires", help="When it ends: 12h, 30d; `never` if it shall not.")
    ] = "90d",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Make a token for a principal and print it, for the only time: the service keeps its hash.

    JSON: `token`, `id`, `principal`, `created_at`, `expires_at` (null: never).
    """
    hint = "Write 12h, 30d or never."
    seconds = read_option("expires", expires, span_or_never, hint, as_json)
    with reported(as_json), reach(url) as client:
        made = client.create_token(principal, expires_seconds=seconds)
        if as_json:
            print_json(made)
            return
        echo(made["token"])
        ends = "never ends" if seconds is None else f"ends in {shown_span(seconds)}"
        echo(f"Token {made['id']} of {principal} {ends}; it is not shown again.", err=True)


def list_(url: Url = None, as_json: AsJson = False) -> None:
    """List the tokens and S3 keys that were made, but for their secrets; the owner's is a file.

    JSON: `tokens`: `id`, `kind` (`token`, `s3`), `principal`, `created_at`, `expires_at` of each.
    """
    with reported(as_json), reach(url) as client:
        found = client.tokens()
    if as_json:
        print_json({"tokens": found})
        return
    if not found:
        echo("No token was made yet: `cachetier token create PRINCIPAL` does.", err=True)
        return
    shown, now = table("<id", "<kind", "<principal", "made", "ends in"), time.time()
    for each in found:
        age = shown_span(max(0.0, now - each["created_at"]))
        kind = each.get("kind", "token")  # which older services do not say
        shown.add_row(each["id"], kind, each["principal"], f"{age} ago", _ending(each, now))
    console().print(shown)


def revoke(
    token_id: Annotated[str, typer.Argument(help="Which: see `token list`.")],
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a token, or an S3 key: from the next request on it opens nothing.

    JSON: `revoked`.
    """
    with reported(as_json), reach(url) as client:
        client.revoke_token(token_id)
        show(as_json, {"revoked": token_id}, f"{token_id} opens nothing any more")


def link(url: Url = None, as_json: AsJson = False) -> None:
    """Print a link that signs a browser in as whoever runs this, once, within a minute.

    The session may do what you may, and ends after 8 hours, after 30 minutes without a request,
    when you sign out, when the token ends that this was asked with, and when the service stops.

    JSON: `url`, `expires_seconds`.
    """
    with reported(as_json), reach(url) as client:
        made = client.link()
        show(as_json, made, made["url"])
    if not as_json:
        echo(f"Open it within {made['expires_seconds']:g} seconds; it works once.", err=True)


def whoami(url: Url = None, as_json: AsJson = False) -> None:
    """Say as whom the service knows the caller, and what that principal may do.

    JSON: `caller`: `principal`, `role`, `runs`, and `uid` and `pid`, or `token` and `address`;
    if it has a share, `used` and `limit` of `size_bytes`, `shards`, `open_puts`, `connections`.
    """
    with reported(as_json), reach(url) as client:
        caller = client.whoami()
    if as_json:
        print_json({"caller": caller})
        return
    share = caller.pop("share", {})
    shown = {**caller, "runs": " ".join(caller["runs"])}
    for kind, each in share.items():
        if isinstance(each, dict) and each["limit"] is not None:
            figure = shown_size if kind == "size_bytes" else str
            shown[kind.replace("_", " ")] = f"{figure(each['used'])} of {figure(each['limit'])}"
    width = max(map(len, shown))
    for name, value in shown.items():
        echo(f"{name.ljust(width)}  {value}")


def span_or_never(text: str) -> float | None:
    """Return the seconds of a span of time; None: never."""
    return None if text == "never" else parsed_span(text)


def _ending(token: dict[str, Any], now: float) -> str:
    if token["expires_at"] is None:
        return "never"
    left = token["expires_at"] - now
    return shown_span(left) if left > 0 else "ended"
