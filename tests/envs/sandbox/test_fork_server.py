import os
import pickle
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from arl_lightning.envs.sandbox.execution import Execution
from arl_lightning.envs.sandbox.fork_server import ForkServer
from arl_lightning.types import ArlError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fork server needs Linux")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


def children(pid: int) -> list[int]:
    """The processes that the process has started and that live, or were not reaped."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def descendants(pid: int) -> set[int]:
    return {pid}.union(*(descendants(child) for child in children(pid)))


def gone(pids: set[int], within_s: float = 10.0) -> bool:
    """Whether none of the processes lives any more."""
    deadline = time.monotonic() + within_s
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def started(work: Callable[[], object]) -> set[int]:
    """The processes that the work started and left."""
    before = descendants(os.getpid())
    work()
    return descendants(os.getpid()) - before


def test_a_program_prints(sandbox: ForkServer) -> None:
    assert sandbox.run("print(6 * 7)") == Execution("42\n", "")
    assert sandbox.run("print(6 * 7)").ok
    assert sandbox.run("") == Execution("", "")


def test_numpy_and_sympy_and_the_standard_library_are_there(sandbox: ForkServer) -> None:
    assert sandbox.run("import numpy; print(numpy.arange(4).sum())").stdout == "6\n"
    assert sandbox.run("import sympy; print(sympy.factor('x**2 - 1'))").stdout == "(x - 1)*(x + 1)\n"
    assert sandbox.run("import graphlib, mpmath; print(mpmath.mpf(1) / 4)").stdout == "0.25\n"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("from fractions import pi", "ImportError: cannot import name 'pi' from 'fractions'"),  # and not where it lies
        ("from math import tau2", "ImportError: cannot import name 'tau2' from 'math'"),
        ("print(", "SyntaxError: '(' was never closed (<program>, line 1)"),
        ("raise ValueError", "ValueError"),
        ("raise ValueError('one\\ntwo')", "ValueError: one two"),
        ("raise SystemExit(0)", ""),
        ("raise SystemExit", ""),
        ("raise SystemExit('no')", "SystemExit: no"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("input()", "EOFError: EOF when reading a line"),
        ("import os; os._exit(7)", "exit status 7"),
        ("import sys; sys.stderr.write('a warning')", ""),
        ("\0", "ValueError: source code string cannot contain null bytes"),
        ("print('\ud800')", "UnicodeEncodeError: 'utf-8' codec can't encode character"),
    ],
)
def test_the_error_is_the_last_line(sandbox: ForkServer, code: str, error: str) -> None:
    found = sandbox.run(code).error
    assert (
        found.startswith(error)
        if error.startswith("Unicode")
        else found.replace("SyntaxError: s", "ValueError: s") == error
    )


def test_what_was_printed_before_an_error_is_kept(sandbox: ForkServer) -> None:
    assert sandbox.run("print(1, end=''); 1 / 0") == Execution("1", "ZeroDivisionError: division by zero")


def test_output_of_c_is_captured_too(sandbox: ForkServer) -> None:
    code = "import ctypes, os; os.write(1, b'raw '); libc = ctypes.CDLL(None); libc.puts(b'C'); libc.fflush(None)"
    assert sandbox.run(code).stdout == "raw C\n"


def test_long_output_is_cut_and_says_by_how_much(sandbox: ForkServer) -> None:
    # 1000 + 9 + a line's end = 1010; the marker "\n... [524 more characters]" has 26, so 486 stay and 524 are missing
    found = sandbox.run("print('x' * 1000 + 'é' * 9)").stdout
    assert found == "x" * 486 + "\n... [524 more characters]"
    assert len(found) == 512


def test_a_program_is_a_main_module(sandbox: ForkServer) -> None:
    code = (
        "import pickle\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n"
        "def f(): return g()\ndef g(): return pickle.loads(pickle.dumps(P(3)))\n"
        "if __name__ == '__main__': print(f())"
    )
    assert sandbox.run(code) == Execution("P(x=3)\n", "")


def test_programs_share_nothing(sandbox: ForkServer) -> None:
    assert sandbox.run("secret = 1; import math; math.pi = 3").ok
    assert sandbox.run("import math; print(math.pi > 3.1, 'secret' in globals())").stdout == "True False\n"


def test_the_same_code_prints_the_same_in_every_server(sandbox: ForkServer) -> None:
    code = "import random, numpy; print(random.random(), numpy.random.rand(), hash('a'), list({'b', 'c', 'd'}))"
    other = ForkServer(preload=("numpy",))
    found = {sandbox.run(code), sandbox.run(code), other.run(code)}
    other.close()
    assert len(found) == 1
    # random.Random(0).random() and numpy.random.RandomState(0).rand()
    assert found.pop().stdout.startswith("0.8444218515250481 0.5488135039273248 ")


def test_time_is_limited_by_the_clock_on_the_wall() -> None:
    server = ForkServer(timeout_s=0.3, preload=())
    server.run("")
    start = time.monotonic()
    assert server.run("print(1)\nimport time; time.sleep(60)") == Execution("1\n", "time limit of 0.3 s exceeded")
    assert 0.3 <= time.monotonic() - start < 3
    server.close()


def test_memory_is_limited_beyond_the_loaded_libraries() -> None:
    server = ForkServer(memory_mb=64, preload=())
    assert server.run("print(len(bytearray(40 << 20)))").stdout == f"{40 << 20}\n"
    assert server.run("bytearray(80 << 20)").error == "memory limit of 64 MB exceeded"
    server.close()


def test_endless_printing_fills_no_memory(sandbox: ForkServer) -> None:
    sandbox.run("")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert sandbox.run("while True: print('x' * 10000)").error == "output limit of 16 MB exceeded"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096  # KiB


def test_a_program_that_is_too_long_is_not_run(sandbox: ForkServer) -> None:
    assert sandbox.run("#" * 200_001) == Execution("", "program longer than 200000 characters")
    assert sandbox.run("#" * 200_000).ok


def test_the_layers_are_told(sandbox: ForkServer) -> None:
    layers = sandbox.layers()
    assert set(layers) == {"namespaces", "landlock", "seccomp"}
    assert layers["namespaces"] or layers["landlock"] > 0


def test_many_calls_leave_no_process_and_no_descriptor() -> None:
    sandbox = ForkServer(preload=())
    sandbox.run("")
    processes, descriptors = descendants(os.getpid()), os.listdir("/proc/self/fd")
    inside = {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in processes}
    for number in range(200):
        assert sandbox.run(f"print({number})" if number % 2 else "1 / 0").stdout == (
            f"{number}\n" if number % 2 else ""
        )
    assert descendants(os.getpid()) == processes
    assert os.listdir("/proc/self/fd") == descriptors
    assert {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in processes} == inside
    sandbox.close()


@pytest.mark.slow
def test_a_thousand_calls_leave_nothing_and_the_server_does_not_grow(sandbox: ForkServer) -> None:
    def server_kib() -> int:
        (warden,) = children(os.getpid())
        (server,) = children(warden)
        return int(Path(f"/proc/{server}/status").read_text().split("VmRSS:")[1].split()[0])

    sandbox.run("")
    for number in range(100):
        sandbox.run(f"print({number})")
    processes, resident = descendants(os.getpid()), server_kib()
    for number in range(1000):
        assert sandbox.run(f"x = {number}; print(x)").stdout == f"{number}\n"
    assert descendants(os.getpid()) == processes
    assert server_kib() - resident < 1024


def test_closing_ends_every_process_and_a_later_program_starts_anew() -> None:
    server = ForkServer(preload=())
    pids = started(lambda: server.run(""))
    assert len(pids) == 2  # warden and server
    server.close()
    assert gone(pids)
    server.close()
    assert server.run("print(1)").stdout == "1\n"
    server.close()


def test_dropping_the_last_reference_closes() -> None:
    servers = [ForkServer(preload=())]
    pids = started(lambda: servers[0].run(""))
    servers.clear()
    assert gone(pids)


@pytest.mark.parametrize("victim", [0, 1], ids=["warden", "server"])
def test_a_dead_server_is_replaced(victim: int) -> None:
    server = ForkServer(preload=())
    pids = started(lambda: server.run(""))
    os.kill(sorted(pids)[victim], signal.SIGKILL)
    assert server.run("print(1)") == Execution("1\n", "")
    assert gone(pids)
    server.close()


def test_a_server_that_hangs_costs_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arl_lightning.envs.sandbox.fork_server._GRACE_S", 0.5)
    server = ForkServer(preload=(), timeout_s=0.5)
    pids = started(lambda: server.run(""))
    os.kill(max(pids), signal.SIGSTOP)
    start = time.monotonic()
    assert server.run("print(1)").error == "time limit of 0.5 s exceeded"  # 0.5 s, and 0.5 s grace
    assert 0.9 < time.monotonic() - start < 5
    assert gone(pids)
    assert server.run("print(1)") == Execution("1\n", "")
    server.close()


@pytest.mark.parametrize(("code", "expected"), [("", 2), ("while True: pass", 3)], ids=["idle", "busy"])
def test_the_server_and_a_running_program_end_with_their_client(code: str, expected: int) -> None:
    client = os.fork()
    if client == 0:
        server = ForkServer(preload=(), timeout_s=600)
        server.run("")
        server.run(code)
        signal.pause()
    deadline = time.monotonic() + 20
    try:
        while len(pids := descendants(client) - {client}) != expected and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(pids) == expected  # warden and server, and the program
    finally:  # a client that stays would keep the pipes of the whole session open
        os.kill(client, signal.SIGKILL)
        os.waitpid(client, 0)
    assert gone(pids)


def test_threads_share_one_server() -> None:
    server = ForkServer(preload=())
    found: dict[int, str] = {}

    def play(number: int) -> None:
        for _ in range(5):
            found[number] = server.run(f"print({number})").stdout

    threads = [threading.Thread(target=play, args=(number,)) for number in range(4)]

    def play_together() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    pids = started(play_together)
    assert found == {number: f"{number}\n" for number in range(4)}
    assert len(pids) == 2
    server.close()


def test_a_copy_by_pickle_has_the_settings_and_a_server_of_its_own(sandbox: ForkServer) -> None:
    copy = pickle.loads(pickle.dumps(ForkServer(2.0, 128, 64, ("numpy",), True)))
    assert (copy.timeout_s, copy.memory_mb, copy.max_output, copy.preload, copy.unsafe) == (
        2.0,
        128,
        64,
        ("numpy",),
        True,
    )
    assert pickle.loads(pickle.dumps(sandbox)).timeout_s == 5.0


def test_a_forked_copy_leaves_the_original_s_server_alone() -> None:
    server = ForkServer(preload=())
    pids = started(lambda: server.run(""))
    copy = os.fork()
    if copy == 0:
        status = 1
        try:
            status = server.run("print(2)").stdout != "2\n"
            server.close()
        finally:
            os._exit(status)
    assert os.waitpid(copy, 0)[1] == 0
    assert server.run("print(1)").stdout == "1\n"
    assert started(lambda: server.run("")) == set()
    server.close()
    assert gone(pids)


def test_it_is_cheap_to_make_and_starts_nothing() -> None:
    assert started(ForkServer) == set()


@pytest.mark.parametrize("settings", [{"timeout_s": 0}, {"memory_mb": 1}, {"max_output": 10}])
def test_settings_out_of_range_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ArlError, match="out of range"):
        ForkServer(**settings)  # type: ignore[arg-type]


def test_a_library_that_is_not_there_is_left_out_and_a_broken_one_is_named() -> None:
    server = ForkServer(preload=("no_such_library",))
    assert server.run("import no_such_library").error == "ModuleNotFoundError: No module named 'no_such_library'"
    server.close()
    broken = ForkServer(preload=("this.is.broken",))
    with pytest.raises(ArlError, match=r"the sandbox does not start \(ModuleNotFoundError"):
        broken.run("")
