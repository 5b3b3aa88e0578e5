"""Serves the report of an unfinished run: on the local machine only, under an address that cannot be guessed."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cleverscore.errors import SettingError
from cleverscore.reporting.html.report import report_page
from cleverscore.runs.store import Store

LOOPBACK = "127.0.0.1"
SECONDS_BETWEEN_PAGES = 2.0  # at least; for each page all laws are fitted anew
REST = 4.0  # seconds of rest per second of making a page, so that pages take at most a fifth of the time


class LiveReport:
    """The newest page of a run, made anew on request if there are new results, but not too often."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._lock = threading.Lock()
        self._state = ""
        self._page = b""
        self._not_before = 0.0

    def state(self) -> str:
        """The number of results that `page` would show now, as text; a browser reloads the page when it changes."""
        with self._lock:
            return self._state if self._page and time.monotonic() < self._not_before else self._count()

    def page(self) -> bytes:
        """The newest page as HTML; the last one again if it was made shortly before."""
        with self._lock:
            state = self._count()
            if not self._page or (state != self._state and time.monotonic() >= self._not_before):
                began = time.monotonic()
                with Store.open(self.run) as store:
                    self._page = report_page(store, live=state).encode()
                self._state = state
                spent = time.monotonic() - began
                self._not_before = time.monotonic() + max(SECONDS_BETWEEN_PAGES, REST * spent)
            return self._page

    def _count(self) -> str:
        with Store.open(self.run) as store:
            return str(len(store.done()))


class LiveServer(ThreadingHTTPServer):
    """Answers GET and HEAD from the local machine for two addresses below a random token: the page and its state."""

    daemon_threads = True

    def __init__(self, run: Path, *, port: int = 0) -> None:
        self.report = LiveReport(run)
        self.token = secrets.token_urlsafe(24)
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise SettingError(
                f"--port {port} cannot be used: {error.strerror}; leave it out for a free one"
            ) from error

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version = "cleverscore"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        # A website could let its own name point to this machine, and so read the page; its requests have that name as
        # their host, and are refused.
        port = self.server.server_port
        if self.headers.get("Host") not in (f"{LOOPBACK}:{port}", f"localhost:{port}"):
            self._send(403, b"forbidden\n", "text/plain", body=body)
            return
        # Whole addresses are compared, in constant time. No file is looked up by a path.
        asked = self.path.encode("utf-8", "replace")
        if secrets.compare_digest(asked, f"/{self.server.token}/".encode()):
            self._send(200, self.server.report.page(), "text/html; charset=utf-8", body=body)
        elif secrets.compare_digest(asked, f"/{self.server.token}/state".encode()):
            self._send(200, self.server.report.state().encode(), "text/plain", body=body)
        else:
            self._send(404, b"not found\n", "text/plain", body=body)

    def _send(self, code: int, content: bytes, kind: str, *, body: bool) -> None:
        self.send_response(code)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(content))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because the address contains the token."""


def serve_report(run: Path, *, port: int = 0, announce: Callable[[str], None]) -> None:
    """Serve the report of a run until interrupted; `announce` is called with its address first."""
    with LiveServer(run, port=port) as server:
        announce(server.address)
        server.serve_forever()
