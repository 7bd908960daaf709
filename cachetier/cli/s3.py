"""``cachetier s3``: what programs need that speak S3 to this node."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from cachetier_client.units import shown_span

from cachetier.cli.output import (
    AsJson,
    Url,
    echo,
    print_json,
    reach,
    read_option,
    refuse,
    reported,
    show,
)
from cachetier.cli.tokens import span_or_never

MountArgument = Annotated[str, typer.Argument(help="The mount of the S3 door, by its name.")]
KeyArgument = Annotated[str, typer.Argument(help="The whole key, as the bucket has it.")]


def env(
    mount: Annotated[
        str | None, typer.Option("--mount", help="Refuse unless the key opens this mount.")
    ] = None,
    principal: Annotated[
        str | None, typer.Option("--principal", help="Whose key it is, if not yours: for admins.")
    ] = None,
    expires: Annotated[
        str, typer.Option("--expires", help="When it ends: 12h, 30d; `never` if it shall not.")
    ] = "90d",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Make a key, and print what has any S3 client use it here: eval "$(cachetier s3 env)".

    Each call makes a key of its own, and shows its secret for the only time: let the processes of a
    job share one. `cachetier token list` shows keys, `cachetier token revoke` ends one.

    JSON: `environment`, `id`, `principal`, `created_at`, `expires_at` (null: never), `mounts`:
    `name`, `bucket`, `prefix` of each.
    """
    hint = "Write 12h, 30d or never."
    with _or_false(as_json):
        seconds = read_option("expires", expires, span_or_never, hint, as_json)
        with reported(as_json), reach(url) as client:
            made = client.create_s3_key(principal, mount=mount, expires_seconds=seconds)
    environment = environment_of(made) | past_proxies(urlsplit(made["url"]).hostname or "")
    if as_json:
        shown = "id", "principal", "created_at", "expires_at", "mounts"
        print_json({"environment": environment, **{name: made[name] for name in shown}})
        return
    for name, value in environment.items():
        echo(f"export {name}={shlex.quote(value)}")
    echo("unset AWS_SESSION_TOKEN")  # of another key: it would be sent along
    ends = "never ends" if seconds is None else f"ends in {shown_span(seconds)}"
    places = ", ".join(f"s3://{each['bucket']}/{each['prefix']}" for each in made["mounts"])
    opens = f"opens {places}" if places else "opens no mount: see `runs` of the principal"
    echo(f"Key {made['id']} of {made['principal']} {ends}; it {opens}.", err=True)


@contextmanager
def _or_false(as_json: bool) -> Iterator[None]:
    """Have the shell that evaluates us fail as well: what follows would go past this node."""
    try:
        yield
    except typer.Exit:
        if not as_json:
            echo("false")
        raise


def keep(
    whose: Annotated[
        str, typer.Argument(help="`ours` replaces what is there, `theirs` drops our version.")
    ],
    mount: MountArgument,
    key: KeyArgument,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Decide about an object in conflict; what was put under its key since goes on.

    It was put with a condition and somebody else changed it in the bucket, or the bucket does not
    take it: `ours` sends it again.

    JSON: `key`, `replaces`: the ETag of what the bucket has by now, empty for nothing.
    """
    if whose not in ("ours", "theirs"):
        refuse(f"cannot keep {whose!r}", "Keep `ours` or `theirs`.", as_json=as_json)
    with reported(as_json), reach(url) as client:
        kept = client.settle_object(mount, key, whose)
        there = kept["replaces"] or "nothing"
        does = f"will replace {there}" if whose == "ours" else f"is dropped; {there} stays"
        show(as_json, kept, f"{key}: our version {does}")


def release(
    mount: MountArgument, key: KeyArgument, url: Url = None, as_json: AsJson = False
) -> None:
    """Let a marker go that waits for what other nodes put before it: they may be gone for good.

    Whoever reads the marker in the bucket may then miss what it speaks of. JSON: `key`.
    """
    with reported(as_json), reach(url) as client:
        released = client.settle_object(mount, key, "release")
        show(as_json, released, f"{key}: waits no more")


def past_proxies(host: str) -> dict[str, str]:
    """Return the variables that have requests to ``host`` go past proxies, if there are any."""
    from urllib.request import getproxies, proxy_bypass

    if not getproxies().keys() & {"http", "https"} or proxy_bypass(host):
        return {}
    hosts = ",".join(filter(None, (os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), host)))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def environment_of(made: dict[str, Any]) -> dict[str, str]:
    """Return the variables that AWS's own clients read, and most others too."""
    return {
        "AWS_ENDPOINT_URL_S3": made["url"],
        "AWS_ACCESS_KEY_ID": made["id"],
        "AWS_SECRET_ACCESS_KEY": made["secret"],
        "AWS_REGION": made["region"],
        "AWS_DEFAULT_REGION": made["region"],
    }
