"""What a browser sends for a page of somebody else does nothing; a person gets in by a link."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from cachetier_client import Client, InvalidRequestError
from cachetier_client.clock import SystemClock

from cachetier.access.sessions import IDLE_SECONDS, LINK_SECONDS
from tests.integration.serving import Answer, Caller, Served, serving

STEP = "/v1/runs/r/steps/1"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
FOLLOWED = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


Audited = Callable[[str], list[dict[str, Any]]]


class ShiftedClock(SystemClock):
    """A clock that a test puts forward."""

    ahead_seconds = 0.0

    def monotonic(self) -> float:
        return SystemClock.monotonic() + self.ahead_seconds


class Browser:
    """Speaks as a browser does: with its cookies, its origin, and without any token."""

    def __init__(self, served: Served) -> None:
        self.call = Caller(served.call.port)
        self.call.bearer = {}
        self.cookies: dict[str, str] = {}
        self.origin = f"http://127.0.0.1:{self.call.port}"

    def get(self, path: str, **headers: str) -> Answer:
        return self._sent("GET", path, None, headers)

    def post(self, path: str, form: Mapping[str, str], **headers: str) -> Answer:
        body = "&".join(f"{name}={quote(value)}" for name, value in form.items()).encode()
        return self._sent("POST", path, body, {"Origin": self.origin, **FORM, **headers})

    def sign_in(self, link: str) -> Answer:
        return self.post("/session", {"link": link})

    def change(self, method: str, path: str, **headers: str) -> Answer:
        """Change something by the API, as a script of the console will."""
        kind = {"Content-Type": "application/json", "Origin": self.origin}
        return self._sent(method, path, b"{}", {**kind, **headers})

    @property
    def csrf(self) -> str:
        return csrf_in(self.get("/"))

    def _sent(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.call(
            method, path, body, {**({"Cookie": cookies} if cookies else {}), **named}
        )
        name, _, rest = answer.headers.get("set-cookie", "").partition("=")
        if name:
            self.cookies[name] = rest.partition(";")[0]
        return answer


def csrf_in(answer: Answer) -> str:
    found = re.search(rb'name="csrf" value="([^"]+)"', answer.body)
    assert found is not None, answer
    return found[1].decode()


def new_link(served: Served) -> str:
    """Return the secret of a link that the owner has asked for at the socket."""
    with Client(served.unix_url) as client:
        made = client.link()
    parts = urlsplit(made["url"])
    assert f"{parts.scheme}://{parts.netloc}{parts.path}" == f"{served.service.url}/session"
    return str(parse_qs(parts.query)["link"][0])


@pytest.fixture(scope="module")
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "log"


@pytest.fixture(scope="module")
def served(clock: ShiftedClock, log: Path) -> Iterator[Served]:
    with serving(clock=clock, audit=str(log)) as served:
        served.put("kept", b"kept")
        yield served


@pytest.fixture
def browser(served: Served) -> Browser:
    served.call("DELETE", f"{STEP}/pin")
    return Browser(served)


@pytest.fixture
def audited(served: Served, log: Path) -> Audited:
    """Return what gives the lines of an operation that are written from now on."""
    begun = len(log.read_text())

    def lines(operation: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in log.read_text()[begun:].splitlines()]
        return [each for each in found if each["operation"] == operation]

    return lines


# --- pages of others -----------------------------------------------------------------------------


def test_a_name_that_was_rebound_to_this_machine_is_not_ours(
    served: Served, browser: Browser, audited: Audited
) -> None:
    """The page's own name is all that tells: the browser takes us for its origin."""
    for path in ("/metrics", "/v1/runs", "/", "/openapi.json"):
        answer = browser.get(path, Host=f"evil.example:{served.call.port}")
        assert (answer.status, answer.code) == (421, "invalid_request")
        assert "`hosts`" in answer.json["hint"]
    assert audited("browser")[0]["refused"]


def test_a_program_with_a_token_may_call_the_node_by_any_name(served: Served) -> None:
    assert served.call("GET", "/metrics", headers={"Host": "node7.cluster:7070"}).status == 200


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
@pytest.mark.parametrize("host", ["10.1.2.3:7070", "node7", "[fd00::1]:7070"])
def test_a_probe_may_call_the_node_by_any_name(served: Served, path: str, host: str) -> None:
    assert Browser(served).get(path, Host=host).status == 200


def test_a_name_of_the_settings_is_ours() -> None:
    with serving(hosts="node7, console.example.org") as served:
        browser = Browser(served)
        for host in ("node7:7070", "node7", "console.example.org", "NODE7:1"):
            assert browser.get("/metrics", Host=host).status == 200
        assert browser.get("/metrics", Host="node8:7070").status == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
def test_no_page_of_others_gets_an_answer_whatever_it_sends(
    served: Served, origin: str, method: str
) -> None:
    answer = served.call(method, f"{STEP}/pin", headers={"Origin": origin})
    assert (answer.status, answer.code) == (403, "forbidden")
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert served.call("GET", "/v1/pins").json == {"pins": []}


def test_a_form_on_another_page_does_nothing_with_a_cookie_that_counts(
    served: Served, browser: Browser
) -> None:
    browser.sign_in(new_link(served))
    token, changes = browser.csrf, {"X-Cachetier-CSRF": browser.csrf}
    for headers in (
        {"Origin": "http://evil.example", **changes},
        {"Origin": "null", **changes},
        {"Origin": browser.origin, "Sec-Fetch-Site": "cross-site", **changes},
        {"Origin": browser.origin, "Sec-Fetch-Site": "same-site", **changes},
    ):
        assert browser.change("PUT", f"{STEP}/pin", **headers).code == "forbidden"
        assert browser.post("/session/end", {"csrf": token}, **headers).code == "forbidden"
    assert browser.get("/v1/pins").json == {"pins": []}


# --- the way in ----------------------------------------------------------------------------------


def test_a_link_becomes_a_session_of_whoever_made_it(
    served: Served, browser: Browser, audited: Audited, log: Path
) -> None:
    link = new_link(served)
    offer = browser.get(f"/session?link={link}")
    assert (offer.status, b"owner" in offer.body) == (200, True)
    answer = browser.sign_in(link)
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("cachetier_session=")
    assert {each.strip().lower() for each in cookie.split(";")[1:]} == {
        *("httponly", "samesite=strict", "path=/", "max-age=28800"),
    }
    assert b"owner" in browser.get("/").body
    who = browser.get("/v1/whoami").json["caller"]
    assert (who["principal"], who["address"]) == ("owner", "127.0.0.1")
    login = audited("login")
    assert [(each["outcome"], each["session"]) for each in login] == [("ok", who["session"])]
    assert audited("link_create")[0]["principal"] == "owner"
    assert browser.change("PUT", f"{STEP}/pin", X_Cachetier_CSRF=browser.csrf).status == 200
    assert audited("pin")[0]["session"] == who["session"]
    written = log.read_text()
    assert link not in written and browser.cookies["cachetier_session"] not in written


def test_behind_tls_the_cookie_is_for_this_host_alone(served: Served, browser: Browser) -> None:
    browser.origin = browser.origin.replace("http:", "https:")
    cookie = browser.sign_in(new_link(served)).headers["set-cookie"]
    assert cookie.startswith("__Host-cachetier_session=")
    assert "; secure" in cookie.lower()
    assert browser.get("/").status == 200


@pytest.mark.parametrize("purpose", [{}, {"Sec-Purpose": "prefetch"}, {"Sec-Fetch-Site": "none"}])
def test_what_fetches_a_link_ahead_neither_uses_it_up_nor_gets_in(
    served: Served, browser: Browser, purpose: dict[str, str]
) -> None:
    link = new_link(served)
    for _ in range(3):
        assert "set-cookie" not in browser.get(f"/session?link={link}", **purpose).headers
    assert browser.get("/").status == 401
    assert browser.sign_in(link).status == 303


def test_a_link_may_be_followed_from_another_page_and_nothing_else_may(
    served: Served, browser: Browser
) -> None:
    link, cross = f"/session?link={new_link(served)}", {"Sec-Fetch-Site": "cross-site"}
    assert browser.get(link, **cross, **FOLLOWED).status == 200
    assert browser.get(link, **cross).code == "forbidden"
    assert browser.get("/", **cross, **FOLLOWED).code == "forbidden"
    assert browser.post(link, {}, **cross, **FOLLOWED).code == "forbidden"


def test_a_link_opens_once(served: Served, browser: Browser, audited: Audited) -> None:
    link = new_link(served)
    assert browser.sign_in(link).status == 303
    for again in (browser.get(f"/session?link={link}"), Browser(served).sign_in(link)):
        assert (again.status, b"cachetier console" in again.body) == (410, True)
        assert "set-cookie" not in again.headers
    assert [each["outcome"] for each in audited("login")].count("ok") == 1


def test_a_link_ends_after_a_minute(served: Served, browser: Browser, clock: ShiftedClock) -> None:
    link = new_link(served)
    clock.ahead_seconds += LINK_SECONDS
    assert browser.sign_in(link).status == 410


def test_no_page_of_others_signs_somebody_in(served: Served, browser: Browser) -> None:
    """Or what they then do would be done as its maker."""
    link = new_link(served)
    assert browser.post("/session", {"link": link}, Origin="http://evil.example").status == 403
    assert browser._sent("POST", "/session", f"link={link}".encode(), FORM).code == "forbidden"
    assert browser.sign_in(link).status == 303


def test_who_sends_a_link_that_is_markup_does_not_get_it_back(served: Served) -> None:
    answer = Browser(served).get(f"/session?link={quote('<script>alert(1)</script>')}")
    assert b"<script" not in answer.body


def test_a_session_makes_no_links(served: Served, browser: Browser) -> None:
    browser.sign_in(new_link(served))
    answer = browser.change("POST", "/v1/links", X_Cachetier_CSRF=browser.csrf)
    assert answer.code == "forbidden"


def test_a_link_by_a_token_leads_to_the_name_that_was_called_and_ends_with_the_token(
    served: Served, browser: Browser
) -> None:
    access = served.service.operations.access
    made = access.create_token("owner", 3600.0)
    bearer = {"Authorization": f"Bearer {made['token']}", "Host": "node7:7070"}
    url = served.call("POST", "/v1/links", b"", bearer).json["url"]
    assert url.startswith("http://node7:7070/session?link=")
    browser.sign_in(url.partition("=")[2])
    assert browser.get("/v1/whoami").json["caller"]["token"] == made["id"]
    access.tokens.revoke(made["id"])
    assert browser.get("/v1/whoami").status == 401


def test_without_a_door_for_browsers_there_is_no_link(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as changed, Client(served.unix_url) as client:
        changed.setattr(served.service, "_http", None)
        with pytest.raises(InvalidRequestError, match="no HTTP door"):
            client.link()


def test_who_has_not_said_who_they_are_has_little_to_say(served: Served) -> None:
    for path, status in (("/session", 400), ("/livez", 405)):
        answer = Browser(served).post(path, {"link": "x" * 5000})
        assert (answer.status, answer.code) == (status, "invalid_request")


# --- changes, and the end ------------------------------------------------------------------------


def test_a_change_by_cookie_needs_the_token_of_its_session(
    served: Served, browser: Browser
) -> None:
    browser.sign_in(new_link(served))
    other = Browser(served)
    other.sign_in(new_link(served))
    for headers in ({}, {"X-Cachetier-CSRF": ""}, {"X-Cachetier-CSRF": other.csrf}):
        answer = browser.change("PUT", f"{STEP}/pin", **headers)
        assert answer.code == "forbidden"
        assert "X-Cachetier-CSRF" in answer.json["hint"]
    assert browser.change("PUT", f"{STEP}/pin", X_Cachetier_CSRF=browser.csrf).status == 200


def test_a_bearer_counts_more_than_a_cookie(served: Served, browser: Browser) -> None:
    browser.sign_in(new_link(served))
    assert "session" not in browser.get("/v1/whoami", **served.call.bearer).json["caller"]
    assert browser.get("/v1/whoami", Authorization="Bearer wrong").status == 401
    assert browser.change("PUT", f"{STEP}/pin", **served.call.bearer).status == 200


def test_who_signs_out_is_out(served: Served, browser: Browser, audited: Audited) -> None:
    browser.sign_in(new_link(served))
    kept = dict(browser.cookies)
    assert browser.post("/session/end", {"csrf": "wrong"}).code == "forbidden"
    out = browser.post("/session/end", {"csrf": browser.csrf})
    assert (out.status, out.headers["location"]) == (303, "/")
    assert "max-age=0" in out.headers["set-cookie"].lower()
    browser.cookies = kept
    assert (browser.get("/").status, browser.get("/v1/whoami").status) == (401, 401)
    assert audited("logout")[0]["session"]


def test_a_session_that_rests_ends(served: Served, browser: Browser, clock: ShiftedClock) -> None:
    browser.sign_in(new_link(served))
    clock.ahead_seconds += IDLE_SECONDS
    answer = browser.get("/")
    assert (answer.status, b"cachetier console" in answer.body) == (401, True)
    assert browser.get("/v1/whoami").status == 401


# --- what each answer says of itself -------------------------------------------------------------


def test_a_page_runs_no_script_but_ours_and_stands_in_no_frame(
    served: Served, browser: Browser
) -> None:
    link = new_link(served)
    pages = [browser.get(f"/session?link={link}"), browser.get("/"), browser.get("/session?link=x")]
    browser.sign_in(link)
    for page in (*pages, browser.get("/")):
        policy = page.headers["content-security-policy"].split("; ")
        for directive in ("default-src 'none'", "form-action 'self'", "frame-ancestors 'none'"):
            assert directive in policy
        scripts = [each for each in policy if each.startswith("script-src") or "unsafe" in each]
        assert scripts == ["script-src 'self'"]
        assert not re.search(rb"<script(?! (defer )?src=)| style=| on\w+=", page.body)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["referrer-policy"] == "same-origin"
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/v1/status", STEP, "/v1/none", "/metrics"])
def test_an_answer_with_data_is_neither_kept_nor_taken_for_something_else(
    served: Served, path: str
) -> None:
    answer = served.call("GET", path)
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_shard_may_be_kept_by_its_reader(served: Served) -> None:
    answer = served.call("GET", f"{STEP}/shards/kept")
    assert "cache-control" not in answer.headers
    assert answer.headers["x-content-type-options"] == "nosniff"
