"""Headless Chromium over its debugging pipe: no driver and no package are needed, only the browser."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 120.0  # seconds; a busy machine starts a browser slowly


def find() -> str:
    """The browser's program; without one the test is skipped, which fails in CI."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")


class Browser:
    """One browser process with one page at a time."""

    def __init__(self, folder: Path) -> None:
        ours, theirs_out = os.pipe()
        theirs_in, self._write = os.pipe()
        self._read = ours
        flags = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
            "--no-first-run", "--disable-background-networking", "--disable-extensions", f"--user-data-dir={folder}",
            "about:blank",
        ]  # fmt: skip
        # The pipe is file descriptors 3 (commands) and 4 (answers); a shell puts ours there.
        line = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", line, find(), *flags],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._next = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        for end in (self._read, self._write):
            with contextlib.suppress(OSError):
                os.close(end)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._read, 1 << 20)
            if not more:
                raise RuntimeError("the browser ended")
            self._buffer += more
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """A command and its answer; what happens meanwhile is kept in `events`."""
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": arguments}
        if self._session is not None and not method.startswith("Target."):
            message["sessionId"] = self._session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._write, content) :]
        while True:
            answer = self._message()
            if answer.get("id") == self._next:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def open(self, address: str, *, width: int = 1440, height: int = 1000, ready: str = "yes") -> None:
        """A new page, waited for until its program says that it is ready."""
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.call("Page.navigate", url=address)
        self.wait(f"document.documentElement?.dataset.ready === '{ready}'")

    def resize(self, width: int, height: int) -> None:
        """Another size of the window."""
        mobile = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", expression))
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until an expression becomes true."""
        end = time.monotonic() + PATIENCE
        while not self.run(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"{condition}; {self.troubles()}")
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """A key, as from a keyboard."""
        codes = {"Escape": 27, "Enter": 13, "Tab": 9, "ArrowRight": 39}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=codes[key], **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=codes[key])

    def troubles(self) -> list[str]:
        """Errors and warnings that the page caused."""
        found = []
        for event in self.events:
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            if event["method"] == "Runtime.consoleAPICalled":
                found.append(str(event["params"]["args"]))
            if event["method"] == "Log.entryAdded":
                found.append(event["params"]["entry"]["text"])
            if event["method"] == "Page.javascriptDialogOpening":
                found.append(event["params"]["message"])
        return found

    def requests(self) -> list[str]:
        """Addresses that were asked for."""
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        addresses = [event["params"]["request"]["url"] for event in sent]
        return [address for address in addresses if not address.startswith("data:")]  # these are in the page itself

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """What is seen, as a PNG."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def pdf(self, path: Path) -> None:
        """What would be printed."""
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"]))
