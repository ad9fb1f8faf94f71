"""A made-up run to look at, and a real headless Chromium, spoken to through its debugging pipe.

So no driver and no network is needed: `ARL_BROWSER` names the program, or one of the usual names is on the path.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from torch.utils.tensorboard import SummaryWriter

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>&quot; $name \u2028"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


class Page:
    """One page of a browser that is closed with it; what its scripts fail at is kept in `faults`."""

    def __init__(self, program: str, home: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        asks, told = os.pipe(), os.pipe()
        command = [program, *FLAGS, f"--user-data-dir={home}", "--remote-debugging-pipe", "about:blank"]
        self._browser = subprocess.Popen(
            command,
            preexec_fn=lambda: (os.dup2(asks[0], 3), os.dup2(told[1], 4)),  # where the browser reads and writes
            pass_fds=(3, 4),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(asks[0])
        os.close(told[1])
        self._asks, self._told = asks[1], told[0]
        self._heard = b""
        self._asked = 0
        self._session: str | None = None
        self.faults: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.resize(width, height)

    def __enter__(self) -> Page:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._browser.kill()
        self._browser.wait()
        os.close(self._asks)
        os.close(self._told)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The browser's answer to one command."""
        self._asked += 1
        order = {"id": self._asked, "method": method, "params": params}
        if self._session is not None:
            order["sessionId"] = self._session
        os.write(self._asks, json.dumps(order).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._asked:
                assert "error" not in told, told["error"]
                result: dict[str, Any] = told["result"]
                return result
            self._note(told)

    def resize(self, width: int, height: int) -> None:
        """The window has this size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def without_scripts(self) -> None:
        """From now on no page's script is run."""
        self.call("Emulation.setScriptExecutionDisabled", value=True)

    def open(self, file: Path) -> None:
        """The file is shown and its scripts have run."""
        self.call("Page.navigate", url=file.resolve().as_uri())
        for _ in range(300):
            if self.ask("document.readyState") == "complete" and self.ask("location.protocol") == "file:":
                return
            time.sleep(0.1)
        raise AssertionError(f"{file} was not loaded")

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def click(self, selector: str, index: int = 0) -> None:
        """A mouse click in the middle of the element, scrolled into sight."""
        found = f"document.querySelectorAll({json.dumps(selector)})[{index}]"
        self.ask(f"{found}.scrollIntoView({{block: 'center'}})")
        x, y = self.ask(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({found}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, file: Path) -> None:
        """What the window shows, as PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _next(self, timeout_s: float = 60.0) -> dict[str, Any]:
        while b"\0" not in self._heard:
            ready, _, _ = select.select([self._told], [], [], timeout_s)
            assert ready, "the browser says nothing"
            more = os.read(self._told, 1 << 20)
            assert more, "the browser has ended"
            self._heard += more
        message, _, self._heard = self._heard.partition(b"\0")
        told: dict[str, Any] = json.loads(message)
        return told

    def _note(self, told: dict[str, Any]) -> None:
        method, params = told.get("method"), told.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.faults.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.faults.append(params["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.faults.append(f"dialog: {params['message']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


@pytest.fixture
def browse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Page]]:
    """Opens pages in a browser of their own; skips without one."""
    program = os.environ.get("ARL_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the path, and ARL_BROWSER names none")
    with ExitStack() as open_pages:
        yield lambda **options: open_pages.enter_context(Page(program, tmp_path_factory.mktemp("browser"), **options))


@pytest.fixture
def leave_run() -> Callable[..., Path]:
    """Leaves in a folder what a run of some epochs would, with hostile text wherever a run can put text."""

    def leave(folder: Path, epochs: int = 6) -> Path:
        with SummaryWriter(str(folder)) as log:
            for epoch in range(epochs):
                scalars = {
                    "epoch": epoch,
                    "train/success_rate": epoch / 10,
                    "val/success_rate": epoch / 10,
                    "val/success_rate_low": epoch / 10 - 0.1,
                    "val/success_rate_high": epoch / 10 + 0.1,
                    "train/kl": 10.0 ** (epoch - 5),
                    f"mine/{HOSTILE}": 1.0,
                }
                for name, value in scalars.items():
                    log.add_scalar(name, value, global_step=8 * epoch + 7)
        update = {
            "minibatch": 1,
            "advantage": -1.5,
            "log_ratios": [0.02, -0.04, None],
            "entropies": [0.1, 0.9, 0.2],
            "kept": [1, 1, 0],
            "clipped": [0, 1, 0],
        }
        turn = {
            "observation": "####\n#PO#\n####",
            "response": f"a{HOSTILE}b",
            "action": HOSTILE,
            "valid": False,
            "reward": -0.1,
            "penalty": 0.1,
            "tokens": ["a", HOSTILE, "b\n"],
            "behavior_logprobs": [-0.1, -2.0, -0.3],
            "update": update,
        }
        ended = {"success": False, "score": -0.1, "stop": "truncated", "error": None, "task_seed": 2**62 + 1}
        episodes = [
            {"stage": stage, "epoch": epoch, "group": 0, "member": member, **ended, "turns": [turn, turn]}
            for epoch in range(0, epochs, 2)
            for stage in ("train", "val")
            for member in ((0, 1) if stage == "train" else (0,))
        ]
        events = [
            {"epoch": 0, "step": 0, "time": 0.0, "kind": "begin", "text": "the run begins"},
            {"epoch": 3, "step": 31, "time": 1.0, "kind": "danger", "text": f"drift is 1.0 {HOSTILE}"},
        ]
        for name, lines in (("transcripts", episodes), ("events", events)):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "config.yaml").write_text(f"seed: 0 # {HOSTILE}")
        return folder

    return leave
