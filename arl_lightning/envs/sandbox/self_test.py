"""What a confined program can do that it must not, found out by trying."""

from __future__ import annotations

from collections.abc import Callable

from arl_lightning.envs.sandbox.execution import Execution

_PROGRAM = """
import os, socket
def succeeds(action):
    try:
        action()
    except OSError:
        return False
    return True
def start():
    if os.fork() == 0:
        os._exit(0)
attempts = {
    "open a socket": lambda: socket.socket(),
    "read /etc/passwd": lambda: open("/etc/passwd"),
    "write a file in /tmp": lambda: open("/tmp/arl_sandbox_self_test", "x"),
    "write a file in its folder": lambda: open("arl_sandbox_self_test", "x"),
    "start a process": start,
    "signal its parent": lambda: os.kill(os.getppid() or 1, 0),
}
print(";".join([name for name in attempts if succeeds(attempts[name])] + ["run as root"] * (os.getuid() == 0)))
"""

_EXECUTE = """
import os
try:
    os.execv("/proc/self/exe", ["python"])
except OSError:
    print("refused")
"""


def breaches(run: Callable[[str], Execution]) -> list[str]:
    """What a program could do in spite of its confinement, as verbs; empty when it is confined.

    Args:
        run: runs a program as any other will be run.
    """
    tried = run(_PROGRAM)
    if tried.error:
        return [f"run the self-test ({tried.error})"]
    found = [name for name in tried.stdout.strip().split(";") if name]
    return found if run(_EXECUTE).stdout == "refused\n" else [*found, "execute another program"]
