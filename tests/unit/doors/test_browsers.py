"""What a page of somebody else can have a browser send is refused, and nothing else is."""

from __future__ import annotations

from itertools import product

import pytest
from starlette.datastructures import Headers

from cachetier.access.sessions import csrf_of
from cachetier.doors.http.browsers import judge, session_in, with_safe_headers
from cachetier.doors.http.problems import CrossSiteError, MisdirectedError

SECRET = "the-secret-of-a-session"
HOSTS = frozenset({"node7", "console.example.org", "node8:80"})
OURS, FOREIGN = "127.0.0.1:7070", "evil.example:7070"

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")
HOST_OF = {"ours": OURS, "configured": "Node7:7070", "rebound": FOREIGN, "none": None}
ORIGINS = ("absent", "own", "null", "foreign", "another port")
SITES = (None, "none", "same-origin", "same-site", "cross-site", "new-in-2030")
KNOWN_BY = ("nothing", "token", "cookie", "cookie and CSRF token", "token and cookie")


def head(host: str, origin: str, site: str | None, known_by: str) -> Headers:
    called = HOST_OF[host]
    origins = {
        "own": f"http://{called}".lower(),
        "null": "null",
        "foreign": "http://evil.example",
        "another port": "http://127.0.0.1:9999",
    }
    fields = {
        "host": called,
        "origin": origins.get(origin),
        "sec-fetch-site": site,
        "authorization": "Bearer x" if "token" in known_by.split() else None,
        "cookie": f"cachetier_session={SECRET}" if "cookie" in known_by else None,
        "x-cachetier-csrf": csrf_of(SECRET) if "CSRF" in known_by else None,
    }
    if known_by == "cookie and CSRF token":
        fields["authorization"] = None
    return Headers({name: value for name, value in fields.items() if value is not None})


def expected(method: str, host: str, origin: str, site: str | None, known_by: str) -> str:
    """Say what must come of a request for data, in other words than the rules have."""
    program = origin == "absent" and site is None and known_by == "token"
    if host in ("rebound", "none") and not program:
        return "misdirected"
    if origin in ("null", "foreign", "another port"):
        return "cross-site"
    if site in ("same-site", "cross-site", "new-in-2030"):
        return "cross-site"
    by_cookie = known_by.startswith("cookie")
    if by_cookie and method not in ("GET", "HEAD"):
        shown = origin == "own" or site == "same-origin"
        return "passes" if shown and "CSRF" in known_by else "cross-site"
    return "passes"


def outcome(method: str, path: str, headers: Headers) -> str:
    try:
        judge(method, path, headers, HOSTS)
    except MisdirectedError:
        return "misdirected"
    except CrossSiteError:
        return "cross-site"
    return "passes"


@pytest.mark.parametrize("known_by", KNOWN_BY)
@pytest.mark.parametrize("host", HOST_OF)
def test_every_combination(host: str, known_by: str) -> None:
    for method, origin, site in product(METHODS, ORIGINS, SITES):
        headers = head(host, origin, site, known_by)
        found = outcome(method, "/v1/pins", headers)
        assert found == expected(method, host, origin, site, known_by), (method, headers)


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:1", "[::1]:7070", "[fe80::1%eth0]:7070", "10.1.2.3:7070"),
        *("localhost", "localhost:8080", "LOCALHOST:7070", "0.0.0.0:7070"),
        *("node7", "node7:1", "NODE7:7070", "console.example.org", "node8:80"),
    ],
)
def test_an_address_or_a_name_of_the_settings_is_ours(host: str) -> None:
    assert outcome("GET", "/metrics", Headers({"host": host})) == "passes"


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "localhost."),
        *("evil.localhost", "node8", "node8:81", "node70", "xnode7", "2130706433", "0x7f.1"),
        *("127.1", "127.0.0.1@evil.example", "127.0.0.1:7070:1", "127.0.0.1 evil.example"),
        *("[::1", "[evil]", "node7,evil.example", "node7/", "é", "node7:" + "9" * 300),
    ],
)
def test_any_other_name_is_not(host: str) -> None:
    headers = Headers(raw=[(b"host", host.encode("latin-1"))])
    assert outcome("GET", "/metrics", headers) == "misdirected"


def test_of_two_hosts_neither_is_believed() -> None:
    headers = Headers(raw=[(b"host", OURS.encode()), (b"host", FOREIGN.encode())])
    assert outcome("GET", "/metrics", headers) == "misdirected"


@pytest.mark.parametrize(
    ("origin", "found"),
    [
        ("https://127.0.0.1:7070", "passes"),  # behind a proxy that speaks TLS
        ("https://console.example.org", "passes"),  # and calls the service by its address
        ("https://console.example.org:444", "cross-site"),
        ("http://node7:7070", "cross-site"),
        ("http://localhost:7070", "cross-site"),
        ("http://localhost", "cross-site"),
        ("ftp://127.0.0.1:7070", "cross-site"),
        ("file://", "cross-site"),
        ("", "cross-site"),
        ("127.0.0.1:7070", "cross-site"),
        ("http://127.0.0.1:7070/", "cross-site"),
        ("http://127.0.0.1:7070@evil.example", "cross-site"),
        ("http://127.0.0.1:7070 http://evil.example", "cross-site"),
    ],
)
def test_an_origin_is_ours_to_the_port(origin: str, found: str) -> None:
    headers = Headers({"host": OURS, "origin": origin})
    assert outcome("GET", "/v1/pins", headers) == found


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("path", ["/session", "/", "/session/end", "/metrics"])
@pytest.mark.parametrize("method", METHODS)
def test_from_another_site_one_can_only_walk_up_to_the_page_of_a_link(
    method: str, path: str, site: str | None
) -> None:
    walks = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    fields = {"host": OURS, "origin": f"http://{OURS}"} if method != "GET" else {"host": OURS}
    headers = Headers({**fields, **walks, **({} if site is None else {"sec-fetch-site": site})})
    own = site in (None, "none", "same-origin")
    passes = own or (method, path) == ("GET", "/session")
    assert outcome(method, path, headers) == ("passes" if passes else "cross-site")


@pytest.mark.parametrize(("mode", "dest"), [("no-cors", "image"), ("navigate", "iframe")])
def test_the_page_of_a_link_is_no_part_of_another_page(mode: str, dest: str) -> None:
    fetch = {"sec-fetch-site": "cross-site", "sec-fetch-mode": mode, "sec-fetch-dest": dest}
    assert outcome("GET", "/session", Headers({"host": OURS, **fetch})) == "cross-site"


@pytest.mark.parametrize("path", ["/session", "/session/end"])
@pytest.mark.parametrize("known_by", KNOWN_BY)
def test_a_form_is_sent_by_a_page_of_ours_and_its_token_is_inside(path: str, known_by: str) -> None:
    assert outcome("POST", path, head("ours", "absent", None, known_by)) == "cross-site"
    assert outcome("POST", path, head("ours", "own", None, known_by)) == "passes"
    assert outcome("POST", path, head("ours", "absent", "same-origin", known_by)) == "passes"


def test_the_header_of_a_program_that_is_no_browser_is_no_matter() -> None:
    headers = Headers({"host": FOREIGN, "authorization": "Bearer x", "sec-fetch-mode": "cors"})
    assert outcome("POST", "/v1/flush", headers) == "passes"


@pytest.mark.parametrize("given", ["", "wrong", csrf_of("another"), "é"])
def test_only_the_csrf_token_of_the_session_will_do(given: str) -> None:
    fields = {"host": OURS, "origin": f"http://{OURS}", "cookie": f"cachetier_session={SECRET}"}
    headers = Headers({**fields, "x-cachetier-csrf": given})
    assert outcome("PUT", "/v1/pins", headers) == "cross-site"


@pytest.mark.parametrize(
    ("cookie", "found"),
    [
        ("cachetier_session=a", "a"),
        ("x=1; cachetier_session=a; y=2", "a"),
        ("cachetier_session=a; __Host-cachetier_session=b", "b"),
        ("cachetier_session=a; cachetier_session=b", None),
        ("xcachetier_session=a; CACHETIER_SESSION=b", None),
        ("cachetier_session", ""),
        (";;=;", None),
        ("", None),
    ],
)
def test_of_two_cookies_that_say_who_one_is_neither_counts(cookie: str, found: str | None) -> None:
    assert session_in(Headers({"cookie": cookie})) == found


def test_what_has_an_etag_may_be_kept() -> None:
    assert (b"cache-control", b"no-store") in with_safe_headers([(b"x", b"y")])
    assert (b"cache-control", b"no-store") not in with_safe_headers([(b"ETag", b"y")])
