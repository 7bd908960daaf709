"""A real browser: the whole way in and out, and what pages of others can have it send."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from tests.integration.browsers import chromium, link_to, needs_chromium, tab
from tests.integration.serving import serving

pytestmark = needs_chromium

ATTACKS = """
    url => {
        const ask = (path, rest) => fetch(`${url}${path}`, {credentials: 'include', ...rest})
            .then(answer => answer.text(), () => 'nothing');
        const form = new URLSearchParams({a: 1});
        return Promise.all([
            ask('/v1/whoami', {}),
            ask('/console/history', {}),
            ask('/session/end', {method: 'POST', mode: 'no-cors', body: form}),
            ask('/console/actions/retry', {method: 'POST', mode: 'no-cors', body: form}),
            ask('/v1/runs/r/steps/1/pin', {method: 'PUT', headers: {'X-Cachetier-CSRF': 'x'}}),
            ask('/v1/runs/r/steps/1/shards/stolen', {method: 'POST', mode: 'no-cors', body: 'x'}),
        ]).then(answers => answers.join(' '))
    }
"""
FORM = """
    url => {
        const form = document.createElement('form');
        form.method = 'post'; form.action = `${url}/session/end`;
        document.body.append(form); form.submit();
    }
"""


@contextmanager
def somebody_else() -> Iterator[int]:
    """Serve an empty page on another port."""

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<body>hello</body>")

        def log_message(self, *_what: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Empty) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_a_person_signs_in_and_out_and_other_pages_do_nothing_in_between() -> None:
    with serving() as served, somebody_else() as port, chromium() as browser, tab(browser) as page:
        served.put("kept", b"kept")
        home, link = str(served.service.url), link_to(served)
        page.goto(link)
        assert "As owner, with the role admin on all runs." in page.inner_text("main")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_text("Losing this node now").or_(
            page.get_by_text("No step is whole on this node")
        ).wait_for()
        assert page.url == f"{home}/"
        assert page.evaluate("document.cookie") == ""
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert cookie["value"] not in page.content()

        page.goto(link)
        assert "has been used" in page.inner_text("main")

        # Another host, and the same one by another port, to which the cookie is sent.
        for host in ("localhost", "127.0.0.1"):
            page.goto(f"http://{host}:{port}/")
            assert "owner" not in page.evaluate(ATTACKS, home)
            page.evaluate(FORM, home)
            page.get_by_text("forbidden").first.wait_for()
        assert served.call("GET", "/v1/pins").json == {"pins": []}
        assert served.drain.retried == 0

        page.goto(f"http://rebound.example:{served.call.port}/metrics")
        assert "is not a name of this service" in page.inner_text("body")

        page.goto(f"{home}/")
        page.get_by_role("button", name="Sign out").click()
        page.get_by_text("Not signed in").wait_for()
        assert page.context.cookies() == []
