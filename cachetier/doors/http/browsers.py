"""The rules for browsers: a browser may send only requests that a page of this service makes.

Pure rules on a head.

A page of somebody else can have a browser send what it likes to a node that the browser reaches,
with the reader's cookies. What it cannot do is forge these headers:

- *Host*: a name is ours only if the settings say so; any other may have been rebound to this
  machine by its owner. An address is always ours: nobody looks it up, so nobody can rebind it.
- *Origin* and *Sec-Fetch-Site* name one of our own pages, or there are none.
- A change by cookie has one of the two, and the CSRF token that only pages of the session know.

A program sends none of these headers, and with a token may call the node by any name.
Source: docs/http.md, "Browsers".
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection, Iterable

from starlette.datastructures import Headers

from cachetier.access.sessions import csrf_of
from cachetier.doors.http.problems import CrossSiteError, MisdirectedError
from cachetier.parsers import host_of

HOME_PATH, SIGN_IN_PATH, SIGN_OUT_PATH = "/", "/session", "/session/end"
CONSOLE_PATH = "/console/"
PAGES = frozenset({HOME_PATH, SIGN_IN_PATH, SIGN_OUT_PATH})
COOKIE = "cachetier_session"
SECURE_COOKIE = f"__Host-{COOKIE}"  # behind TLS, where nothing else on the host can set it
CSRF_HEADER = "X-Cachetier-CSRF"

_OF_BROWSERS = ("origin", "sec-fetch-site", "cookie")
_NOT_SNIFFED, _NOT_KEPT = (b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")


def judge(method: str, path: str, headers: Headers, hosts: Collection[str]) -> None:
    """Let a request pass if no page of somebody else can have had a browser send it.

    ``hosts`` are our names in lower case, with or without a port.

    Raises:
        MisdirectedError: It calls us by a name that is not ours.
        CrossSiteError: Another page sent it, or nothing shows that one of ours did.
    """
    host = ",".join(headers.getlist("host")).lower()
    has_token = "authorization" in headers
    if not _is_ours(host, hosts) and not (has_token and not any(map(headers.get, _OF_BROWSERS))):
        raise MisdirectedError(f"{ascii(host)[:100]} is not a name of this service")
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and not _is_own(origin.lower(), host, hosts):
        raise CrossSiteError(f"a page of {ascii(origin)[:100]} sent this request")
    if site not in (None, "same-origin", "none") and not _follows_a_link(method, path, headers):
        raise CrossSiteError("a page of another site sent this request")
    cookie = None if has_token else session_in(headers)
    if method in ("GET", "HEAD") or (cookie is None and path not in PAGES):
        return
    if origin is None and site != "same-origin":
        raise CrossSiteError(
            "the request has no Origin header, so the page that sent it is unknown"
        )
    if cookie is not None and path not in PAGES:  # whose forms have the token inside
        check_csrf(cookie, headers.get(CSRF_HEADER, ""))


def is_page(path: str) -> bool:
    """Return whether a path is for people in browsers, who may come with a session alone."""
    return path in PAGES or path.startswith(CONSOLE_PATH)


def check_csrf(secret: str, given: str) -> None:
    """Let a change pass that a page of the session ``secret`` sent.

    Raises:
        CrossSiteError: None did.
    """
    if not hmac.compare_digest(given.encode(), csrf_of(secret).encode()):
        raise CrossSiteError(
            "the request lacks the CSRF token of the session",
            hint=f"Send it as {CSRF_HEADER}; or send `Authorization: Bearer`, and no cookie.",
        )


def session_in(headers: Headers) -> str | None:
    """Return the secret in the session's cookie; of two of a name, somebody else has set one."""
    pairs = [each.strip().partition("=") for each in headers.get("cookie", "").split(";")]
    for known in (SECURE_COOKIE, COOKIE):
        found = [value for name, _, value in pairs if name == known]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def with_safe_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Add to an answer that nobody guesses its type, nor keeps it unless it has an ETag."""
    given = list(headers)
    kept = any(name.lower() == b"etag" for name, _ in given)
    return [*given, _NOT_SNIFFED] if kept else [*given, _NOT_SNIFFED, _NOT_KEPT]


def _is_ours(host: str, hosts: Collection[str]) -> bool:
    try:
        name = host_of(host)
        known = name == "localhost" or name in hosts or host in hosts
        return known or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _is_own(origin: str, host: str, hosts: Collection[str]) -> bool:
    """Return whether a page is of the same host and port, or of a proxy's, as the settings say."""
    scheme, _, place = origin.partition("://")
    return scheme in ("http", "https") and (place == host or place in hosts)


def _follows_a_link(method: str, path: str, headers: Headers) -> bool:
    navigates = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    return (method, path) == ("GET", SIGN_IN_PATH) and navigates == ("navigate", "document")
