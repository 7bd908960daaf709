"""A real browser: the whole way in and out, and what pages of others can have it send."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from cachetier_client import Client

from tests.integration.chromium import browsing, needs_chromium
from tests.integration.serving import Served, serving

pytestmark = needs_chromium

ATTACKS = """
    const ask = (path, rest) => fetch(`${url}${path}`, {credentials: 'include', ...rest})
        .then(answer => answer.text(), () => 'nothing');
    Promise.all([
        ask('/v1/whoami', {}),
        ask('/session/end', {method: 'POST', mode: 'no-cors', body: new URLSearchParams({a: 1})}),
        ask('/v1/runs/r/steps/1/pin', {method: 'PUT', headers: {'X-Cachetier-CSRF': 'x'}}),
        ask('/v1/runs/r/steps/1/shards/stolen', {method: 'POST', mode: 'no-cors', body: 'x'}),
    ]).then(answers => answers.join(' '))
"""
FORM = """
    const form = document.createElement('form');
    form.method = 'post'; form.action = `${url}/session/end`;
    document.body.append(form); form.submit();
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


def link_to(served: Served) -> str:
    with Client(served.unix_url) as client:
        return str(client.link()["url"])


def test_a_person_signs_in_and_out_and_other_pages_do_nothing_in_between(tmp_path: Path) -> None:
    with serving() as served, somebody_else() as port, browsing(tmp_path) as page:
        served.put("kept", b"kept")
        home, link = str(served.service.url), link_to(served)
        page.open(link)
        page.click("Sign in", until="Signed in to cachetier")
        assert "As owner, with the role admin on all runs." in page.text
        assert page.evaluate("location.href") == f"{home}/"
        assert page.evaluate("document.cookie") == ""
        (cookie,) = page.cookies
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert cookie["value"] not in page.text

        page.open(link)
        assert "has been used" in page.text

        # Another host, and the same one by another port, to which the cookie is sent.
        for host in ("localhost", "127.0.0.1"):
            page.open(f"http://{host}:{port}/")
            assert "owner" not in page.evaluate(f"const url = '{home}'; {ATTACKS}")
            page.evaluate(f"{{ const url = '{home}'; {FORM} }}")
            page.wait_for("document.body.innerText.includes('forbidden')")
        assert served.call("GET", "/v1/pins").json == {"pins": []}

        page.open(f"http://rebound.example:{served.call.port}/metrics")
        assert "is not a name of this service" in page.text

        page.open(f"{home}/")
        page.click("Sign out", until="Not signed in")
        assert page.cookies == []
