"""The live view: for this machine, for those who know the token, for reading only."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cleverscore.errors import SettingError
from cleverscore.reporting.html.live_server import LiveServer
from cleverscore.runs.schema import StoredBlocks
from cleverscore.runs.store import Store
from tests.browser import Browser
from tests.helpers import cleverscore
from tests.stored_runs import made_run


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    run = made_run(tmp_path / "run", inputs=3)
    (run / "secret.txt").write_text("secret")
    with LiveServer(run) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server: LiveServer, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def test_only_the_loopback_is_listened_on(server: LiveServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.address.startswith(f"http://127.0.0.1:{server.server_port}/{server.token}")


def test_the_token_is_needed_and_is_new_each_time(server: LiveServer, tmp_path: Path) -> None:
    assert len(server.token) >= 32
    assert ask(server, f"/{server.token}/")[0] == 200
    for path in ("/", "/state", "/wrong/", f"/{server.token}", f"/{server.token[:-1]}/"):
        assert ask(server, path)[0] == 404, path
    with LiveServer(tmp_path / "run") as other:
        assert other.token != server.token


def test_nothing_else_can_be_read(server: LiveServer) -> None:
    token = server.token
    for path in (
        f"/{token}/../secret.txt",
        f"/{token}/secret.txt",
        f"/{token}/run.sqlite",
        f"/{token}/%2e%2e/secret.txt",
        f"/{token}/..%2fsecret.txt",
        f"/{token}/state/../secret.txt",
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
    ):
        code, content = ask(server, path)
        assert code == 404 and b"secret" not in content and b"root:" not in content, path


def test_it_is_for_reading_only(server: LiveServer) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert ask(server, f"/{server.token}/", method)[0] == 501
    assert ask(server, f"/{server.token}/", "HEAD") == (200, b"")


def test_another_host_name_is_refused(server: LiveServer) -> None:
    for host in ("evil.example", f"evil.example:{server.server_port}", ""):
        assert ask(server, f"/{server.token}/", Host=host)[0] == 403
    assert ask(server, f"/{server.token}/state", Host=f"localhost:{server.server_port}")[0] == 200


def test_a_taken_port_is_an_error_with_a_way_out(server: LiveServer, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="leave it out"):
        LiveServer(tmp_path / "run", port=server.server_port)
    assert cleverscore("report", tmp_path / "none", "--serve").returncode == 2


@pytest.mark.slow
def test_the_page_follows_the_run(server: LiveServer, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        browser.open(server.address)
        assert browser.run("document.getElementById('count').textContent").startswith("3 of 3")
        browser.run(
            "document.forms.filters.sort.value = 'input'; document.forms.filters.dispatchEvent(new Event('input'))"
        )
        with Store.open(server.report.run, write=True) as store:
            store.append(
                [StoredBlocks(norm, replace(store.measurements(norm)[0], input_id=9)) for norm in ("2", "inf")]
            )
        browser.wait("document.getElementById('count')?.textContent.startsWith('4 of 4')")
        browser.wait("document.documentElement.dataset.ready === 'yes'")
        assert browser.run("document.forms.filters.sort.value") == "input"  # filters stay
        assert browser.troubles() == []
        assert set(browser.requests()) == {server.address, f"{server.address}state"}
