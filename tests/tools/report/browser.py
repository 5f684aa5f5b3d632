"""A headless browser without a network, over the Chrome DevTools Protocol by a pair of pipes."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import programs

# Chromium as distributions name it, and Google's builds of it.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # which root needs
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
SECONDS = 60.0  # that an answer may take


def found() -> str | None:
    """Return the path of a browser, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def left(folder: Path) -> list[str]:
    """Return the command lines of processes that name a browser's folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes().decode(errors="replace"))
    return [line for line in lines if str(folder) in line]


@dataclass
class Browser:
    """A running browser with one open tab.

    errors: what scripts, the console and the loading of parts reported. requests: addresses that were asked for.
    """

    process: subprocess.Popen[bytes]
    to_browser: int
    from_browser: int
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _session: str | None = None
    _read: bytes = b""
    _events: set[str] = field(default_factory=set)

    def attach(self) -> None:
        """Open the tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, path: Path) -> None:
        """Load a page and wait for it."""
        self._events.clear()
        self.call("Page.navigate", url=path.as_uri())
        while "Page.loadEventFired" not in self._events:
            self._take(self._message())

    def view(self, width: int, height: int = 900, *, phone: bool = False) -> None:
        """Set the size of the window in CSS pixels."""
        shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **shape)

    def value(self, script: str) -> Any:
        """Return the value of an expression in the page. Raises AssertionError where it throws."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Write the whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        answer = self.call("Page.captureScreenshot", clip=size | {"scale": 1}, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def print(self, path: Path) -> None:
        """Write the page as PDF, on A4."""
        answer = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False)
        path.write_bytes(base64.b64decode(answer["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to a call of the protocol. Raises AssertionError for an error."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._take(answer)

    def _message(self) -> dict[str, Any]:
        """Return the next message. Raises AssertionError where none comes."""
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._read:
            ready, _, _ = select.select([self.from_browser], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            more = os.read(self.from_browser, 1 << 20)
            assert more, "the browser has ended"
            self._read += more
        message, _, self._read = self._read.partition(b"\0")
        return json.loads(message)

    def _take(self, message: dict[str, Any]) -> None:
        """Keep what an event tells."""
        method, about = message.get("method", ""), message.get("params", {})
        self._events.add(method)
        if method == "Runtime.exceptionThrown":
            self.errors.append(about["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.errors.append(f"console.{about['type']}")
        elif method == "Log.entryAdded":
            self.errors.append(about["entry"]["text"])
        # The browser's own filters for emulated eyes are data.
        elif method == "Network.requestWillBeSent" and not about["request"]["url"].startswith("data:"):
            self.requests.append(about["request"]["url"])


@contextlib.contextmanager
def started(program: str, folder: Path) -> Iterator[Browser]:
    """Yield a browser that keeps its files in a new folder, which is removed. All of its processes are ended."""
    folder.mkdir()
    to_browser, to_us = os.pipe(), os.pipe()
    places = {name: str(folder) for name in ("HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    # The browser reads commands from descriptor 3 and writes answers to 4.
    redirected = f'exec "$0" "$@" 3<&{to_browser[0]} 4>&{to_us[1]}'
    process = subprocess.Popen(
        ["bash", "-c", redirected, program, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
        pass_fds=(to_browser[0], to_us[1]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **places},
        start_new_session=True,
    )
    os.close(to_browser[0]), os.close(to_us[1])
    browser = Browser(process, to_browser[1], to_us[0])
    try:
        browser.attach()
        yield browser
        browser._session = None
        browser.call("Browser.close")
        process.wait(timeout=SECONDS)
    finally:
        programs.end(process, seconds=programs.GRACE)
        os.close(to_browser[1]), os.close(to_us[0])
        programs.wait_until(lambda: not left(folder), programs.GRACE)
        shutil.rmtree(folder)
