"""The limits of the WebAssembly sandbox, shown by hand-written WASI commands, and by CPython where a user has one."""

import os
import pickle
import threading
import time
from pathlib import Path

import pytest

from arl_lightning.envs.sandbox.execution import Execution
from arl_lightning.envs.sandbox.wasm import WasmSandbox
from arl_lightning.types import ArlError

wasmtime = pytest.importorskip("wasmtime")
IMPORTS = """
(import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
(import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "path_open"
  (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "environ_sizes_get" (func $environ (param i32 i32) (result i32)))
(memory (export "memory") 1)
(data (i32.const 0) "\\10\\00\\00\\00\\06\\00\\00\\00")  ;; a vector: 6 bytes at 16
(data (i32.const 16) "hello\\n")
(data (i32.const 32) "\\28\\00\\00\\00\\0a\\00\\00\\00")  ;; a vector: 10 bytes at 40
(data (i32.const 40) "Bad: news\\n")
(data (i32.const 64) "etc/passwd")
"""
SAY = "(drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))"
COMPLAIN = "(drop (call $write (i32.const 2) (i32.const 32) (i32.const 1) (i32.const 8)))"
FAIL = "(call $exit (i32.const 1))"


def command(folder: Path, body: str) -> str:
    path = folder / "command.wasm"
    path.write_bytes(wasmtime.wat2wasm(f'(module {IMPORTS} (func (export "_start") {body}))'))
    return str(path)


def run(folder: Path, body: str, **settings: float) -> Execution:
    sandbox = WasmSandbox(command(folder, body), timeout_s=settings.pop("timeout_s", 20.0), memory_mb=16)
    found = sandbox.run("")
    sandbox.close()
    return found


def test_output_and_ends_are_told(tmp_path: Path) -> None:
    assert run(tmp_path, SAY) == Execution("hello\n", "")
    assert run(tmp_path, f"{SAY} (call $exit (i32.const 0))") == Execution("hello\n", "")
    assert run(tmp_path, f"{SAY} (call $exit (i32.const 3))") == Execution("hello\n", "exit status 3")
    assert run(tmp_path, f"{SAY} {COMPLAIN} {FAIL}") == Execution("hello\n", "Bad: news")
    assert run(tmp_path, f"{COMPLAIN}") == Execution("", "")


def test_a_trap_is_a_crash_that_keeps_what_was_printed(tmp_path: Path) -> None:
    assert run(tmp_path, f"{SAY} unreachable") == Execution("hello\n", "the interpreter crashed (UNREACHABLE)")


def test_an_endless_loop_is_stopped_and_the_next_program_runs(tmp_path: Path) -> None:
    endless = "(loop $again (br $again))"
    sandbox = WasmSandbox(command(tmp_path, SAY + endless), timeout_s=0.3)
    sandbox.run("")  # compiles
    start = time.monotonic()
    for _ in range(2):
        assert sandbox.run("") == Execution("hello\n", "time limit of 0.3 s exceeded")
    assert 0.6 <= time.monotonic() - start < 5
    assert threading.active_count() == 1 or not [t for t in threading.enumerate() if isinstance(t, threading.Timer)]


def test_endless_output_is_stopped(tmp_path: Path) -> None:
    # each round writes 64 KiB out of the memory's one page
    big = "(i32.store (i32.const 4) (i32.const 65520)) (loop $again " + SAY + " (br $again))"
    assert run(tmp_path, big).error == "output limit of 16 MB exceeded"


def test_memory_stops_growing_at_the_limit(tmp_path: Path) -> None:
    # 16 MiB are 256 pages; one is there already
    grows = f"(if (i32.eq (memory.grow (i32.const 255)) (i32.const -1)) (then {FAIL}))"
    refused = f"(if (i32.ne (memory.grow (i32.const 1)) (i32.const -1)) (then {FAIL}))"
    assert run(tmp_path, grows + refused).ok


def test_no_file_can_be_opened_and_nothing_waited_for(tmp_path: Path) -> None:
    opening = (
        "(call $open (i32.const 3) (i32.const 0) (i32.const 64) (i32.const 10) (i32.const 0) (i64.const 2) "
        "(i64.const 0) (i32.const 0) (i32.const 96))"
    )
    waiting = "(call $poll (i32.const 0) (i32.const 128) (i32.const 1) (i32.const 8))"
    for call, number in ((opening, 8), (waiting, 58)):  # no such descriptor; not supported
        assert run(tmp_path, f"(if (i32.ne {call} (i32.const {number})) (then {FAIL}))").ok


def test_writing_elsewhere_or_out_of_memory_is_refused(tmp_path: Path) -> None:
    for arguments, number in (
        ("(i32.const 3) (i32.const 0) (i32.const 1) (i32.const 8)", 8),  # no such descriptor
        ("(i32.const 1) (i32.const 0) (i32.const 1) (i32.const -2)", 28),  # the count would lie outside
        ("(i32.const 1) (i32.const 0) (i32.const -1) (i32.const 8)", 28),  # four thousand million vectors
    ):
        assert run(tmp_path, f"(if (i32.ne (call $write {arguments}) (i32.const {number})) (then {FAIL}))").ok
    outside = "(drop (call $write (i32.const 1) (i32.const -8) (i32.const 1) (i32.const 8)))"
    assert run(tmp_path, outside) == Execution("", "")


def test_the_host_s_environment_is_not_passed(tmp_path: Path) -> None:
    # two variables are set, so the count at address 96 is 2, whatever this process has
    body = "(drop (call $environ (i32.const 96) (i32.const 100)))"
    assert run(tmp_path, f"{body} (if (i32.ne (i32.load (i32.const 96)) (i32.const 2)) (then {FAIL}))").ok


def test_what_is_not_there_or_no_command_is_said(tmp_path: Path) -> None:
    with pytest.raises(ArlError, match="no file"):
        WasmSandbox(str(tmp_path / "python.wasm"))
    with pytest.raises(ArlError, match="no folder"):
        WasmSandbox(command(tmp_path, SAY), stdlib=str(tmp_path / "lib"))
    with pytest.raises(ArlError, match="out of range"):
        WasmSandbox(command(tmp_path, SAY), timeout_s=0)
    (tmp_path / "text.wasm").write_text("hello")
    with pytest.raises(ArlError, match="no WebAssembly module"):
        WasmSandbox(str(tmp_path / "text.wasm")).run("")
    (tmp_path / "empty.wasm").write_bytes(wasmtime.wat2wasm("(module)"))
    with pytest.raises(ArlError, match="no _start"):
        WasmSandbox(str(tmp_path / "empty.wasm")).run("")


def test_a_copy_by_pickle_and_a_closed_one_run(tmp_path: Path) -> None:
    sandbox = WasmSandbox(command(tmp_path, SAY), timeout_s=3.0)
    copy = pickle.loads(pickle.dumps(sandbox))
    assert copy.timeout_s == 3.0
    copy.close()
    copy.close()
    assert copy.run("") == Execution("hello\n", "")


def test_it_runs_where_no_cache_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/proc/nowhere")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert run(tmp_path, SAY) == Execution("hello\n", "")


@pytest.mark.slow
@pytest.mark.skipif("ARL_PYTHON_WASM" not in os.environ, reason="ARL_PYTHON_WASM names no CPython for WASI")
def test_cpython_keeps_to_its_limits() -> None:
    sandbox = WasmSandbox(os.environ["ARL_PYTHON_WASM"], timeout_s=2.0, memory_mb=256)
    found = [sandbox.run("import random; print(random.random(), hash('a'))") for _ in range(2)]
    assert found[0] == found[1]
    assert found[0].stdout.startswith("0.8444218515250481 ")  # random.Random(0).random()
    for code, error in {
        "1 / 0": "ZeroDivisionError: division by zero",
        "bytearray(1 << 30)": "memory limit of 256 MB exceeded",
        "9**9**9": "time limit of 2 s exceeded",
        "while True: print('x' * 1000)": "output limit of 16 MB exceeded",
        "open('/etc/passwd')": "FileNotFoundError: [Errno 44] No such file or directory: '/etc/passwd'",
        "import socket; socket.socket()": "OSError: [Errno 58] Not supported",
        "import os; os.fork()": "AttributeError: module 'os' has no attribute 'fork'",
        "import time; time.sleep(1)": "OSError: [Errno 58] Not supported",
        "input()": "EOFError: EOF when reading a line",
        "import os; assert not os.environ": "",
    }.items():
        assert sandbox.run(code).error == error
