"""Headless Chromium, driven over a pipe by its own DevTools protocol: no driver to install.

    test ── descriptor 3: commands, JSON, each ended by a zero byte ──▶ Chromium
         ◀── descriptor 4: answers, and events of the page ───────────

The browser ends when its pipe does, so that none outlives a test that is killed. It resolves no
host name: a page that wants the network fails, and says so in :attr:`Page.requests`.

Elements are found as a reader with a screen reader finds them: by role and accessible name.
https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Value = TypeVar("Value")

PROGRAMS = ("chromium", "google-chrome")
#: beyond what a machine takes that others use, too
_PATIENCE_S = 600.0
_SWITCHES = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--window-size=1280,900",
)
_KEYS = {"Enter": (13, "\r"), " ": (32, " "), "Tab": (9, ""), "Escape": (27, "")}
_KEYS |= {"ArrowLeft": (37, ""), "ArrowUp": (38, ""), "ArrowRight": (39, ""), "ArrowDown": (40, "")}
_KEYS |= {"Home": (36, ""), "End": (35, ""), "0": (48, "0")}


def program() -> str | None:
    """Where a browser is, if there is one."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


def why_not() -> str:
    """Why no page can be opened here, and what to do; empty where one can."""
    if program() and shutil.which("pdftotext"):
        return ""
    return (
        f"needs a browser ({' or '.join(PROGRAMS)}) and pdftotext: as root on Debian, "
        "sh tests/browser/install.sh"
    )


class BrowserError(Exception):
    """The browser refused a command, did not answer, or a script in the page failed."""


class Browser:
    """A browser of its own profile, as a context."""

    def __init__(self) -> None:
        path = program()
        if path is None:
            raise BrowserError(f"none of {', '.join(PROGRAMS)} is installed")
        self._profile = tempfile.TemporaryDirectory(prefix="triptych-browser-")
        ends = [*os.pipe(), *os.pipe()]
        # Above the two numbers that the browser wants its own ends at.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
        for end in ends:
            os.close(end)
        reads, self._commands, self._answers, writes = high

        def place() -> None:
            os.dup2(reads, 3)
            os.dup2(writes, 4)

        # Its sandbox refuses root; what it opens here are our own pages.
        unsafe = ["--no-sandbox"] if os.geteuid() == 0 else []
        home = {"HOME": self._profile.name, "XDG_CONFIG_HOME": self._profile.name}
        self._process = subprocess.Popen(
            [path, *_SWITCHES, *unsafe, f"--user-data-dir={self._profile.name}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | home,
            preexec_fn=place,
            pass_fds=(3, 4),
        )
        os.close(reads)
        os.close(writes)
        self._unread = b""
        self._number = 0
        #: everything that pages told, in order: method, parameters, session
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.command("Browser.close")
            self._process.wait(10)
        except (BrowserError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
        # Its helpers may still be writing there for a moment.
        shutil.rmtree(self._profile.name, ignore_errors=True)
        self._profile.cleanup()

    def command(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; raises BrowserError where it is refused."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        deadline = time.monotonic() + _PATIENCE_S
        while (answer := self._next(deadline, method)).get("id") != number:
            self.events.append(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        return dict(answer["result"])

    def listen(self, seconds: float) -> None:
        """Take what comes within a time."""
        if select.select([self._answers], [], [], 0 if b"\0" in self._unread else seconds)[0]:
            self.events.append(self._next(time.monotonic() + _PATIENCE_S, "an event"))

    def _next(self, deadline: float, awaited: str) -> dict[str, Any]:
        while b"\0" not in self._unread:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._answers], [], [], left)[0]:
                raise BrowserError(
                    f"the browser did not answer within {_PATIENCE_S:g} s: {awaited}"
                )
            data = os.read(self._answers, 1 << 20)
            if not data:
                raise BrowserError(f"the browser ended: {awaited}")
            self._unread += data
        message, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(message))

    def page(self, width: int = 1280, height: int = 900) -> Page:
        """An empty tab."""
        return Page(self, width, height)


class Page:
    """A tab."""

    def __init__(self, browser: Browser, width: int, height: int) -> None:
        self._browser = browser
        target = browser.command("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.command("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log", "DOM", "Accessibility"):
            self.command(f"{domain}.enable")
        self.command("Page.setLifecycleEventsEnabled", enabled=True)
        self.resize(width, height)

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command to this tab."""
        return self._browser.command(method, self._session, **parameters)

    def resize(self, width: int, height: int = 900) -> None:
        """Make the window as large, in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)

    def open(self, path: Path, fragment: str = "") -> None:
        """Open a file, and wait until it is loaded."""
        document = self.command("Page.navigate", url=path.as_uri() + fragment)["loaderId"]

        def loaded() -> bool:
            told = self._of("Page.lifecycleEvent")
            return any(each["loaderId"] == document and each["name"] == "load" for each in told)

        self.wait(loaded, f"{path} to be loaded")

    def close(self) -> None:
        """Close the tab."""
        self.command("Page.close")

    def _of(self, method: str) -> list[dict[str, Any]]:
        """The parameters of this tab's events of a kind."""
        return [
            event["params"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event.get("method") == method
        ]

    @property
    def requests(self) -> list[str]:
        """Every address that the tab asked for."""
        return [event["request"]["url"] for event in self._of("Network.requestWillBeSent")]

    @property
    def problems(self) -> list[str]:
        """What the console shows as an error or a warning, and scripts that failed."""
        thrown = [event["exceptionDetails"] for event in self._of("Runtime.exceptionThrown")]
        called = self._of("Runtime.consoleAPICalled")
        logged = [event["entry"] for event in self._of("Log.entryAdded")]
        return [
            *(str(each.get("exception", each).get("description", each["text"])) for each in thrown),
            *(str(each["args"]) for each in called if each["type"] in ("error", "warning")),
            *(each["text"] for each in logged if each["level"] in ("error", "warning")),
        ]

    def wait(
        self, condition: Callable[[], Value], what: str, seconds: float = _PATIENCE_S
    ) -> Value:
        """Wait until a condition gives something true, and return that."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise BrowserError(f"waited {seconds:g} s in vain for {what}")
            self._browser.listen(0.02)
        return value

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page; a promise's when it is kept."""
        done = self.command(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        return _value(done)

    # --------------------------------------------------------------------------- elements

    def find(self, role: str, name: str = "", within: int | None = None) -> list[int]:
        """Elements of a role whose accessible name contains ``name``, in the page's order."""
        root = self.command("DOM.getDocument", depth=0)["root"]
        place = {"nodeId": root["nodeId"]} if within is None else {"backendNodeId": within}
        found = self.command("Accessibility.queryAXTree", role=role, **place)["nodes"]
        return [
            node["backendDOMNodeId"]
            for node in found
            if not node["ignored"] and name in str(node.get("name", {}).get("value", ""))
        ]

    def one(self, role: str, name: str = "", within: int | None = None) -> int:
        """The one element of a role and name, waited for."""
        found = self.wait(lambda: self.find(role, name, within), f"a {role} named {name!r}")
        if len(found) != 1:
            raise BrowserError(f"{len(found)} elements are a {role} named {name!r}")
        return found[0]

    def call(self, element: int, function: str) -> Any:
        """The value of a function of the element, which is its ``this``."""
        handle = self.command("DOM.resolveNode", backendNodeId=element)["object"]["objectId"]
        return _value(
            self.command(
                "Runtime.callFunctionOn",
                objectId=handle,
                functionDeclaration=function,
                returnByValue=True,
                awaitPromise=True,
            )
        )

    def text(self, element: int) -> str:
        """What an element shows."""
        return str(self.call(element, "function () { return this.innerText; }"))

    # ------------------------------------------------------------------------------ hands

    def middle(self, element: int) -> tuple[float, float]:
        """Scroll to an element; returns where its middle is in the window, in CSS pixels, once it
        stays there: a page whose styles are made by a script moves while they are.
        """
        seen: list[tuple[float, float]] = []

        def rests() -> bool:
            self.command("DOM.scrollIntoViewIfNeeded", backendNodeId=element)
            quad = self.command("DOM.getContentQuads", backendNodeId=element)["quads"][0]
            seen.append((sum(quad[::2]) / 4, sum(quad[1::2]) / 4))
            return len(seen) > 2 and len(set(seen[-3:])) == 1

        self.wait(rests, "an element that stays where it is")
        return seen[-1]

    def mouse(self, kind: str, x: float, y: float, **how: Any) -> None:
        """Move, press or release the mouse."""
        self.command("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **how)

    def click(self, element: int) -> None:
        """Click on the middle of an element."""
        self.drag(*[self.middle(element)] * 2)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Press the mouse at one place and release it at another."""
        left = {"button": "left", "buttons": 1, "clickCount": 1}
        self.mouse("Moved", *start)
        self.mouse("Pressed", *start, **left)
        if start != end:
            half = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
            self.mouse("Moved", *half, button="left", buttons=1)
            self.mouse("Moved", *end, button="left", buttons=1)
        self.mouse("Released", *end, **left)

    def focus(self, element: int) -> None:
        """Give an element the keyboard."""
        self.command("DOM.focus", backendNodeId=element)

    def press(self, key: str) -> None:
        """Press and release a key."""
        code, text = _KEYS[key]
        how = {"key": key, "windowsVirtualKeyCode": code}
        self.command("Input.dispatchKeyEvent", type="keyDown", text=text, **how)
        self.command("Input.dispatchKeyEvent", type="keyUp", **how)

    def write(self, text: str) -> None:
        """Type text into what has the keyboard."""
        self.command("Input.insertText", text=text)

    # ------------------------------------------------------------------------- what is seen

    def pdf(self) -> bytes:
        """The page as it is printed on A4."""
        paper = {"paperWidth": 8.27, "paperHeight": 11.69}
        return base64.b64decode(self.command("Page.printToPDF", **paper)["data"])


def _value(done: dict[str, Any]) -> Any:
    if "exceptionDetails" in done:
        details = done["exceptionDetails"]
        raise BrowserError(details.get("exception", {}).get("description", details["text"]))
    return done["result"].get("value")
