"""Every attack is refused, killed or pointless; run as this user and, where that is root, as nobody too.

No attack harms the machine should it succeed: bombs are small, and each success only prints BREACH.
"""

import ast
import os
import platform
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from arl_lightning.envs.sandbox.execution import Execution

REPOSITORY = Path(__file__).resolve().parents[3]
PREFIX = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def must(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
X86 = os.uname().machine == "x86_64"
"""
REFUSED = r"^(PermissionError|FileNotFoundError|OSError)\b"
NO_PERMISSION = r"^PermissionError: \[Errno 1\]"
TIME = r"^time limit of 0\.3 s exceeded$"
CRASH = r"^the interpreter crashed \(SIG(SEGV|SYS|BUS|ILL|ABRT)\)$"


class Attack(NamedTuple):
    """A program, the error it has to end with, and what it has to print."""

    code: str
    error: str
    stdout: str = ""


ATTACKS = {
    # files
    "read the password file": Attack("print('BREACH', open('/etc/passwd').read())", REFUSED),
    "read the shadow file": Attack("print('BREACH', open('/etc/shadow').read())", REFUSED),
    "list root's home": Attack("print('BREACH', os.listdir('/root'))", REFUSED),
    "list the root": Attack("print('BREACH', os.listdir('/'))", REFUSED),
    "read the repository": Attack(f"print('BREACH', open({str(REPOSITORY / 'README.md')!r}).read())", REFUSED),
    "list the repository": Attack(f"print('BREACH', os.listdir({str(REPOSITORY)!r}))", REFUSED),
    "import the project": Attack(
        f"sys.path.append({str(REPOSITORY)!r})\nimport arl_lightning.types; print('BREACH')", "^ModuleNotFoundError: "
    ),
    "find the project loaded": Attack(
        "found = [name for name in sys.modules if name.startswith('arl_lightning')]\nprint(found)", "^$", "[]\n"
    ),
    "open for reading by path only": Attack("os.open('/etc', os.O_PATH); print('BREACH')", REFUSED),
    "read through a folder's descriptor": Attack(
        "os.open('../../../../../etc/passwd', os.O_RDONLY, dir_fd=os.open(os.path.dirname(os.__file__), os.O_RDONLY))\n"
        "print('BREACH')",
        REFUSED,
    ),
    "write in the working folder": Attack("open('breach', 'w'); print('BREACH')", REFUSED),
    "write in /tmp": Attack("open('/tmp/arl_breach', 'w'); print('BREACH')", REFUSED),
    "write in shared memory": Attack("open('/dev/shm/arl_breach', 'w'); print('BREACH')", REFUSED),
    "write in the standard library": Attack(
        "open(os.path.join(os.path.dirname(os.__file__), 'breach.py'), 'w'); print('BREACH')", REFUSED
    ),
    "change the standard library": Attack("open(os.__file__, 'r+'); print('BREACH')", REFUSED),
    "make a temporary file": Attack("import tempfile; tempfile.TemporaryFile(); print('BREACH')", REFUSED),
    "make a nameless file": Attack(
        "os.open(os.path.dirname(os.__file__), os.O_TMPFILE | os.O_RDWR); print('BREACH')", REFUSED
    ),
    "make a folder": Attack("os.mkdir('/tmp/arl_breach'); print('BREACH')", REFUSED),
    "remove the standard library": Attack("os.unlink(os.__file__); print('BREACH')", REFUSED),
    "rename the standard library": Attack("os.rename(os.__file__, '/breach'); print('BREACH')", REFUSED),
    "truncate a file": Attack("os.truncate(os.__file__, 0); print('BREACH')", REFUSED),
    "change a mode": Attack("os.chmod(os.__file__, 0o777); print('BREACH')", NO_PERMISSION),
    "change an owner": Attack("os.chown(os.__file__, os.getuid(), -1); print('BREACH')", NO_PERMISSION),
    "change a time": Attack("os.utime(os.__file__); print('BREACH')", NO_PERMISSION),
    "set an attribute": Attack("os.setxattr(os.__file__, 'user.breach', b'1'); print('BREACH')", NO_PERMISSION),
    "read an attribute": Attack("os.listxattr(os.__file__); print('BREACH')", NO_PERMISSION),
    "link symbolically": Attack("os.symlink('/etc/passwd', '/tmp/arl_breach'); print('BREACH')", REFUSED),
    "link": Attack("os.link(os.__file__, '/tmp/arl_breach'); print('BREACH')", REFUSED),
    "make a pipe with a name": Attack("os.mkfifo('/tmp/arl_breach'); print('BREACH')", REFUSED),
    "make a device": Attack("os.mknod('/tmp/arl_breach', 0o020666, os.makedev(1, 1)); print('BREACH')", REFUSED),
    "change the folder": Attack("os.chdir('/'); print('BREACH')", NO_PERMISSION),
    "change the root": Attack("os.chroot('/'); print('BREACH')", NO_PERMISSION),
    "open by a handle": Attack(
        "must(libc.open_by_handle_at(-100, ctypes.create_string_buffer(128), 0)); print('BREACH')", NO_PERMISSION
    ),
    "open by the newer call": Attack(
        "how = ctypes.create_string_buffer(24)\n"
        "must(libc.syscall(437, -100, b'/etc/passwd', how, 24)); print('BREACH')",
        NO_PERMISSION,
    ),
    # other processes
    "read the parent's environment": Attack("print('BREACH', open(f'/proc/{os.getppid()}/environ').read())", REFUSED),
    "read its own environment": Attack("print('BREACH', open('/proc/self/environ').read())", REFUSED),
    "write the parent's memory": Attack("open(f'/proc/{os.getppid()}/mem', 'r+b'); print('BREACH')", REFUSED),
    "list processes": Attack("print('BREACH', os.listdir('/proc'))", REFUSED),
    "read another process's memory": Attack(
        "buffer = ctypes.create_string_buffer(16)\n"
        "must(libc.process_vm_readv(os.getppid() or 1, buffer, 1, buffer, 1, 0)); print('BREACH')",
        NO_PERMISSION,
    ),
    "trace the parent": Attack("must(libc.ptrace(16, os.getppid() or 1, 0, 0)); print('BREACH')", NO_PERMISSION),
    "be traced": Attack("must(libc.ptrace(0, 0, 0, 0)); print('BREACH')", NO_PERMISSION),
    "kill the parent": Attack("os.kill(os.getppid(), 9); print('BREACH')", NO_PERMISSION),
    "kill process 1": Attack("os.kill(1, 9); print('BREACH')", NO_PERMISSION),
    "kill everybody": Attack("os.kill(-1, 0); print('BREACH')", NO_PERMISSION),
    "kill its group": Attack("os.killpg(0, 0); print('BREACH')", NO_PERMISSION),
    "queue a signal": Attack("must(libc.sigqueue(os.getppid() or 1, 0, None)); print('BREACH')", NO_PERMISSION),
    "send signals by a descriptor's owner": Attack(
        "import fcntl; fcntl.fcntl(1, fcntl.F_SETOWN, os.getppid() or 1); print('BREACH')", NO_PERMISSION
    ),
    "get a process's descriptors": Attack("os.pidfd_open(os.getpid()); print('BREACH')", NO_PERMISSION),
    "stop itself": Attack("os.kill(os.getpid(), 19); print('BREACH')", NO_PERMISSION),
    "change another's limits": Attack(
        "import resource; resource.prlimit(os.getppid() or 1, resource.RLIMIT_CPU); print('BREACH')", NO_PERMISSION
    ),
    "raise its own limits": Attack(
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); print('BREACH')", "^(Permission|Value)Error"
    ),
    # new processes
    "run a command": Attack("import subprocess; subprocess.run(['true']); print('BREACH')", REFUSED),
    "run a shell": Attack(
        "status = os.system('true'); print('BREACH' if status == 0 else 'refused')", "^$", "refused\n"
    ),
    "execute": Attack("os.execv(sys.executable, ['python', '-c', 'print(\"BREACH\")'])", NO_PERMISSION),
    "execute by a descriptor": Attack("os.execve(0, ['python'], {}); print('BREACH')", NO_PERMISSION),
    "spawn": Attack("os.posix_spawn('/bin/true', ['true'], {}); print('BREACH')", NO_PERMISSION),
    "fork bomb": Attack("for _ in range(3): os.fork()\nprint('BREACH')", NO_PERMISSION),
    "fork by number": Attack("must(libc.syscall(57 if X86 else 220, 17, 0, 0, 0, 0)); print('BREACH')", NO_PERMISSION),
    "fork by the newer call": Attack(
        "must(libc.syscall(435, ctypes.create_string_buffer(88), 88)); print('BREACH')", NO_PERMISSION
    ),
    "leave a daemon": Attack("if os.fork() == 0: os.setsid()\nprint('BREACH')", NO_PERMISSION),
    "use a pool of processes": Attack(
        "import multiprocessing; multiprocessing.Process(target=print).start(); print('BREACH')", REFUSED
    ),
    "flood of threads": Attack(
        "import threading\nfor _ in range(20): threading.Thread(target=print).start()\nprint('BREACH')",
        "^RuntimeError: can't start new thread",
    ),
    # network
    "tcp socket": Attack("import socket; socket.create_connection(('127.0.0.1', 9)); print('BREACH')", NO_PERMISSION),
    "udp socket": Attack("import socket; socket.socket(type=socket.SOCK_DGRAM); print('BREACH')", NO_PERMISSION),
    "unix socket": Attack("import socket; socket.socket(socket.AF_UNIX); print('BREACH')", NO_PERMISSION),
    "netlink socket": Attack("import socket; socket.socket(socket.AF_NETLINK); print('BREACH')", NO_PERMISSION),
    "pair of sockets": Attack("import socket; socket.socketpair(); print('BREACH')", NO_PERMISSION),
    "socket through C": Attack("must(libc.socket(2, 1, 0)); print('BREACH')", NO_PERMISSION),
    "socket by number": Attack("must(libc.syscall(41 if X86 else 198, 2, 1, 0)); print('BREACH')", NO_PERMISSION),
    "download": Attack("import urllib.request as u; u.urlopen('http://127.0.0.1:9'); print('BREACH')", "^URLError"),
    # the kernel
    "become root": Attack("os.setuid(0); print('BREACH')", NO_PERMISSION),
    "become root by the longest way": Attack("os.setresuid(0, 0, 0); print('BREACH')", NO_PERMISSION),
    "be root": Attack("print('BREACH' if os.getuid() == 0 or os.geteuid() == 0 else 'nobody')", "^$", "nobody\n"),
    "enter a user namespace": Attack("must(libc.unshare(0x10000000)); print('BREACH')", NO_PERMISSION),
    "join a namespace": Attack("must(libc.setns(0, 0)); print('BREACH')", NO_PERMISSION),
    "mount": Attack("must(libc.mount(b'none', b'/', b'tmpfs', 0, None)); print('BREACH')", NO_PERMISSION),
    "move a mount": Attack("must(libc.syscall(429, -100, b'/', -100, b'/', 0)); print('BREACH')", NO_PERMISSION),
    "file in memory": Attack("os.memfd_create('breach'); print('BREACH')", NO_PERMISSION),
    "execute a file in memory": Attack(
        "descriptor = must(libc.syscall(319 if X86 else 279, b'x', 0))\n"
        "must(libc.syscall(322 if X86 else 281, descriptor, b'', 0, 0, 0x1000)); print('BREACH')",
        NO_PERMISSION,
    ),
    "executable memory": Attack("import mmap; mmap.mmap(-1, 4096, prot=7); print('BREACH')", NO_PERMISSION),
    "make memory executable": Attack(
        "import mmap; page = mmap.mmap(-1, 4096)\naddress = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
        "must(libc.mprotect(ctypes.c_void_p(address), 4096, 5)); print('BREACH')",
        NO_PERMISSION,
    ),
    "io_uring": Attack("must(libc.syscall(425, 1, ctypes.create_string_buffer(120))); print('BREACH')", NO_PERMISSION),
    "bpf": Attack("must(libc.syscall(321 if X86 else 280, 0, None, 0)); print('BREACH')", NO_PERMISSION),
    "keyring": Attack("must(libc.syscall(250 if X86 else 219, 0, -3, 1)); print('BREACH')", NO_PERMISSION),
    "userfaultfd": Attack("must(libc.syscall(323 if X86 else 282, 1)); print('BREACH')", NO_PERMISSION),
    "performance counters": Attack(
        "must(libc.syscall(298 if X86 else 241, None, 0, -1, -1, 0)); print('BREACH')", NO_PERMISSION
    ),
    "another filter": Attack("must(libc.prctl(22, 2, None, 0, 0)); print('BREACH')", NO_PERMISSION),
    "shared memory segment": Attack("must(libc.shmget(0, 4096, 0o1600)); print('BREACH')", NO_PERMISSION),
    "message queue": Attack("must(libc.msgget(0, 0o1600)); print('BREACH')", NO_PERMISSION),
    "set the clock": Attack("import time; time.clock_settime(time.CLOCK_REALTIME, 0); print('BREACH')", NO_PERMISSION),
    "set the host's name": Attack("import socket; socket.sethostname('breach'); print('BREACH')", NO_PERMISSION),
    "type into a terminal": Attack(
        "import fcntl, termios; fcntl.ioctl(1, termios.TIOCSTI, b'x'); print('BREACH')", r"^OSError: \[Errno 25\]"
    ),
    # memory and crashes
    "4 GB": Attack("print('BREACH', len(bytearray(4 << 30)))", "^memory limit of 512 MB exceeded$"),
    "4 GB of numbers": Attack("import numpy; print('BREACH', numpy.zeros(1 << 29).size)", "^memory limit of 512 MB"),
    "memory bit by bit": Attack(
        "kept = []\nfor _ in range(4096): kept.append(bytearray(1 << 20))\nprint('BREACH')", "^memory limit of 512 MB"
    ),
    "deep recursion": Attack("def f(): return f()\nf()", "^RecursionError: "),
    "crash": Attack("print('before', flush=True)\nctypes.string_at(0)", CRASH, "before\n"),
    "deep recursion without a limit": Attack(
        "sys.setrecursionlimit(10**9)\nclass C: __getattr__ = lambda s, n: getattr(s, n)\nC().x",
        f"{CRASH}|^memory limit|^RecursionError",
    ),
    "parser bomb": Attack("eval('(' * 100000)", f"{CRASH}|^(SyntaxError|MemoryError|memory limit|RecursionError)"),
    "abort": Attack("os.abort()", CRASH),
    "foreign system call interface": Attack(
        "libc.syscall(0x40000000 + 39); print('BREACH')" if platform.machine() == "x86_64" else "ctypes.string_at(0)",
        CRASH,
    ),
    "endless printing": Attack("while True: print('x' * 1000)", "^output limit of 16 MB exceeded$"),
    "endless errors": Attack("while True: sys.stderr.write('x' * 1000)", "^output limit of 16 MB exceeded$"),
    # what is left to find
    "scan for descriptors": Attack(
        "import fcntl\nfound = []\nfor number in range(4096):\n    try:\n        fcntl.fcntl(number, fcntl.F_GETFD)\n"
        "        found.append(number)\n    except OSError:\n        pass\nprint(found)",
        "^$",
        "[0, 1, 2]\n",
    ),
    "write to high descriptors": Attack(
        "for number in range(3, 300):\n    try:\n        os.write(number, b'{}')\n        print('BREACH')\n"
        "    except OSError:\n        pass",
        "^$",
    ),
    "read its output pipe": Attack("os.read(1, 1); print('BREACH')", r"^OSError: \[Errno 9\]"),
    "read the environment": Attack("print(dict(os.environ), os.getenv('SECRET_TOKEN'))", "^$", "{} None\n"),
    "read the environment through C": Attack(
        "libc.getenv.restype = ctypes.c_char_p; print(libc.getenv(b'SECRET_TOKEN'), libc.getenv(b'PATH'))",
        "^$",
        "None None\n",
    ),
    "answer with a pickle": Attack(
        "import pickle\nclass P:\n    def __reduce__(self): return (os._exit, (1,))\n"
        "os.write(1, pickle.dumps(P())); os.write(2, pickle.dumps(P())); os._exit(0)",
        "^$",
    ),
    "forge an answer": Attack(
        "os.write(1, b'\\x00\\x00\\x00\\x02{}'); os.write(2, b'\\x00\\x00\\x00\\x02{}')", "^$", "\0\0\0\2{}"
    ),
    "raise an error that lies": Attack(
        "class Liar(BaseException):\n    def __str__(self): raise SystemExit(0)\nraise Liar", "^exit status 1$|^Liar"
    ),
    "break what later programs use": Attack(
        "import builtins, math, sympy\nbuiltins.print = builtins.len = None\nmath.sqrt = sympy.factor = None", "^$"
    ),
}

SLOW_ATTACKS = {
    "endless loop": Attack("print('before')\nwhile True: pass", TIME, "before\n"),
    "huge power": Attack("9**9**9", TIME),
    "huge power of a number": Attack("import sympy; print(sympy.Integer(9) ** 9 ** 9)", f"{TIME}|^memory limit"),
    "sleep for ever": Attack("import time; time.sleep(1e6)", TIME),
    "wait for a signal": Attack("import signal; signal.pause()", TIME),
    "ignore every signal": Attack(
        "import signal\nfor number in range(1, 65):\n    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        TIME,
    ),
    "catch every exception": Attack(
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass", TIME
    ),
    "close its output and go on": Attack("os.close(1); os.close(2)\nwhile True: pass", TIME),
    "expensive pattern": Attack("import re; re.match('(a+)+$', 'a' * 64 + 'b')", TIME),
}
LAST = "import math, sympy; print(len(str(sympy.factor(sympy.Symbol('x') ** 2 - 1))), math.sqrt(4))"
USERS = ["self", *(["nobody"] if os.geteuid() == 0 else [])]
LISTINGS = {"list the root", "list root's home", "list the repository"}
LIBRARIES = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")]
WAY = {part for path in LIBRARIES for way in (path, path.resolve()) for part in way.parts}  # links lie on it too
UNSHARE, CAPSET, LANDLOCK = (272, 126, 444) if platform.machine() == "x86_64" else (97, 91, 444)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fork server needs Linux")


@pytest.fixture(scope="module", params=USERS)
def played(request: pytest.FixtureRequest, players: Any) -> dict[str, Execution]:
    """What each attack left behind, all against one server for each time limit."""
    player = players[request.param]
    found: dict[str, Execution] = {}
    for attacks, timeout_s in ((ATTACKS, 20.0), (SLOW_ATTACKS, 0.3)):
        programs = [PREFIX + attack.code for attack in attacks.values()]
        answer = player.play([*programs, LAST], timeout_s=timeout_s, memory_mb=512)
        executions = [Execution(*done) for done in answer["done"]]
        found |= dict(zip([*attacks, f"afterwards {timeout_s}"], executions, strict=True))
    return found


@pytest.mark.parametrize("name", [*ATTACKS, *SLOW_ATTACKS])
def test_an_attack_fails(played: dict[str, Execution], name: str) -> None:
    attack, execution = {**ATTACKS, **SLOW_ATTACKS}[name], played[name]
    assert "BREACH" not in execution.stdout
    assert re.search(attack.error, execution.error), execution
    assert not attack.stdout or execution.stdout == attack.stdout, execution


def test_the_next_program_finds_everything_as_it_was(played: dict[str, Execution]) -> None:
    # "(x - 1)*(x + 1)" has 15 characters
    assert {played["afterwards 20.0"], played["afterwards 0.3"]} == {Execution("15 2.0\n", "")}


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("lacking", [(UNSHARE,), (LANDLOCK,)], ids=["no-namespaces", "no-landlock"])
def test_either_of_namespaces_and_landlock_is_enough(players: Any, user: str, lacking: tuple[int, ...]) -> None:
    attacks = {name: attack for name, attack in ATTACKS.items() if not re.search("sympy|numpy|while True", attack.code)}
    programs = [PREFIX + attack.code for attack in attacks.values()]
    answer = players[user].play(programs, lacking, memory_mb=512, preload=())
    assert "fault" not in answer, answer
    assert answer["layers"]["namespaces"] == (UNSHARE not in lacking)
    assert (answer["layers"]["landlock"] > 0) == (LANDLOCK not in lacking)
    breached = {name: done[0] for name, done in zip(attacks, answer["done"], strict=True) if "BREACH" in done[0]}
    for name in LISTINGS & set(breached):  # a root of one's own is there to be seen, and holds the way to the libraries
        assert LANDLOCK in lacking, name
        assert set(ast.literal_eval(breached.pop(name).removeprefix("BREACH "))) <= WAY
    assert breached == {}


@pytest.mark.parametrize("user", USERS)
def test_without_both_it_refuses_unless_told_otherwise(players: Any, user: str) -> None:
    lacking = (UNSHARE, LANDLOCK)
    assert "read /etc/passwd" in players[user].play(["print(1)"], lacking, preload=())["fault"]
    assert players[user].play(["print(1)"], lacking, unsafe=True, preload=())["done"] == [["1\n", ""]]


@pytest.mark.parametrize("user", USERS)
def test_a_layer_that_cannot_be_laid_stops_it_unless_told_otherwise(players: Any, user: str) -> None:
    fault = players[user].play(["print(1)"], (CAPSET,), preload=())["fault"]
    assert "the sandbox could not be closed: [Errno 1]" in fault
    assert players[user].play(["print(1)"], (CAPSET,), unsafe=True, preload=())["done"] == [["1\n", ""]]
