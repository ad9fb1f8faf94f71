"""Who runs the attacks: this user, and when that is root also an unprivileged one, each in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TextIO

import pytest

from arl_lightning.envs.sandbox import seccomp, syscalls
from arl_lightning.envs.sandbox.fork_server import ForkServer
from arl_lightning.types import ArlError

ROOT = Path(__file__).resolve().parents[3]


class Player:
    """A forked copy of this process that runs programs in sandboxes as one user."""

    pipes: ClassVar[list[TextIO]] = []

    def __init__(self, become: Callable[[], None]) -> None:
        requests, answers = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(requests[1])
            os.close(answers[0])
            for pipe in self.pipes:
                pipe.close()  # else an earlier player would never see the end of its requests
            _serve(become, os.fdopen(requests[0]), os.fdopen(answers[1], "w"))
        os.close(requests[0])
        os.close(answers[1])
        self.requests, self.answers = os.fdopen(requests[1], "w"), os.fdopen(answers[0])
        self.pipes.extend((self.requests, self.answers))

    def play(self, programs: list[str], lacking: tuple[int, ...] = (), **settings: Any) -> dict[str, Any]:
        """What the programs left behind, in order, or the fault that the sandbox raised.

        `lacking` numbers system calls that fail with EPERM, as on kernels that do not have or allow them.
        """
        print(
            json.dumps({"programs": programs, "lacking": lacking, "settings": settings}), file=self.requests, flush=True
        )
        answer: dict[str, Any] = json.loads(self.answers.readline())
        return answer

    def close(self) -> None:
        self.requests.close()
        self.answers.close()
        os.waitpid(self.pid, 0)


def _serve(become: Callable[[], None], requests: TextIO, answers: TextIO) -> NoReturn:
    """Each request has been answered by a child of its own, which gives up the lacking system calls for good."""
    try:
        become()
        for line in requests:
            if os.fork() == 0:
                print(json.dumps(_play(json.loads(line))), file=answers, flush=True)
                os._exit(0)
            os.wait()
    finally:
        os._exit(0)


def _play(request: dict[str, Any]) -> dict[str, Any]:
    if request["lacking"]:
        refuse = [step for number in request["lacking"] for step in ((0x15, 0, 1, number), (0x06, 0, 0, 0x00050001))]
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        seccomp.install(seccomp.assemble([(0x20, 0, 0, 0), *refuse, (0x06, 0, 0, 0x7FFF0000)]))
    os.environ["SECRET_TOKEN"] = "canary"
    sandbox = ForkServer(**request["settings"])
    try:
        done = [sandbox.run(code) for code in request["programs"]]
        return {"layers": sandbox.layers(), "done": [[one.stdout, one.error] for one in done]}
    except ArlError as error:
        return {"fault": str(error)}
    finally:
        sandbox.close()


def _closed_folder(path: Path) -> Path | None:
    """The outermost folder on the way to the path that others may not enter."""
    return next((step for step in [*reversed(path.parents), path] if not step.stat().st_mode & 0o001), None)


def _opening_mounts(scratch: Path) -> list[str]:
    """Shell lines that, in a mount namespace of one's own, let everybody read the interpreter and this repository."""
    needed = list(dict.fromkeys([Path(sys.base_prefix), Path(sys.prefix), ROOT]))
    needed = [path for path in needed if _closed_folder(path)]
    lines = ["set -e"]
    for number, path in enumerate(needed):
        lines += [f"mkdir -p {scratch}/{number}", f"mount --rbind {path} {scratch}/{number}"]
    for closed in dict.fromkeys(_closed_folder(path) for path in needed):
        lines.append(f"mount -t tmpfs -o mode=755 none {closed}")
    for number, path in enumerate(needed):
        lines.append(f"mkdir -p {path}")
        if path.stat().st_mode & 0o001:
            lines.append(f"mount --rbind {scratch}/{number} {path}")
            continue
        for child in path.iterdir():
            if child.is_dir() and not child.is_symlink():
                lines += [f"mkdir {child}", f"mount --rbind {scratch}/{number}/{child.name} {child}"]
            else:
                lines.append(f"cp -a {scratch}/{number}/{child.name} {child}")
    return lines


def _become_nobody(scratch: Path) -> None:
    """This process is an unprivileged user to whom the interpreter and the repository lie open."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("", "/", "", 1 << 18 | 16384)  # what is mounted here stays here
    subprocess.run(["sh", "-c", "\n".join(_opening_mounts(scratch))], check=True)
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)


@pytest.fixture(scope="session")
def players(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Player]]:
    """A player by user: `self`, and `nobody` where this user is root."""
    found = {"self": Player(lambda: None)}
    if os.geteuid() == 0:
        scratch = tmp_path_factory.mktemp("mounts")
        found["nobody"] = Player(lambda: _become_nobody(scratch))
    yield found
    for player in found.values():
        player.close()
