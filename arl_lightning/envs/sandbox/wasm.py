"""A sandbox whose programs run in CPython compiled to WebAssembly: any system, the standard library only."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from arl_lightning.envs.extras import load_extra
from arl_lightning.envs.sandbox.execution import (
    LONGEST_PROGRAM,
    OUTPUT_LIMIT_BYTES,
    SHORTEST_OUTPUT,
    ErrorTail,
    Execution,
    OutputHead,
    length_sentence,
    memory_sentence,
    output_sentence,
    time_sentence,
)
from arl_lightning.types import ArlError

_WASI = "wasi_snapshot_preview1"
_BAD_DESCRIPTOR, _INVALID, _NOT_SUPPORTED = 8, 28, 58
_MOST_VECTORS, _WORD = 1024, 0xFFFFFFFF
_STDLIB_IN_GUEST = "/stdlib"
# The program travels as hexadecimal digits: an argument can hold neither a null nor half a surrogate pair.
_PRELUDE = (
    "import os, random, sys\n"
    "code = bytes.fromhex(sys.argv[1]).decode('utf-8', 'surrogatepass')\n"
    "os.environ.clear(); random.seed(0); sys.argv[:] = ['']\n"
    "exec(compile(code, '<program>', 'exec'), {'__name__': '__main__'})\n"
)


class WasmSandbox:
    """Programs run one at a time, each in a fresh WebAssembly instance that can compute and print, and do nothing else.

    The instance has no file but the standard library's, no network, no clock to sleep by (`time.sleep` raises), empty
    environment variables and no input; `random` and hashes are seeded with 0. There is no numpy and no sympy. The first
    program waits for the compiler, or for its cache in the user's cache folder. One instance may be shared by threads,
    which take turns; a copy by pickle compiles again.

    No python.wasm is shipped: take a WASI preview 1 build of CPython, either one with the standard library packed
    inside, or CPython's own with its `lib/python3.x` folder named by `stdlib`.

    Args:
        python_wasm: path of CPython as a WASI command.
        stdlib: path of the standard library that belongs to it; None when it is packed inside.
        timeout_s: wall-clock seconds after which a program is stopped, greater than 0.
        memory_mb: memory of an instance, interpreter included, MiB, at least 16.
        max_output: most characters of output that are kept, at least 64; a cut is marked with what is missing.
    """

    def __init__(
        self,
        python_wasm: str,
        stdlib: str | None = None,
        timeout_s: float = 5.0,
        memory_mb: int = 1024,
        max_output: int = 512,
    ) -> None:
        if not 0 < timeout_s < 1e6 or memory_mb < 16 or max_output < SHORTEST_OUTPUT:
            raise ArlError(
                f"timeout_s={timeout_s}, memory_mb={memory_mb}, max_output={max_output} are out of range: choose "
                f"0 < timeout_s < 1e6, memory_mb >= 16 and max_output >= {SHORTEST_OUTPUT}."
            )
        if not Path(python_wasm).is_file():
            raise ArlError(f"there is no file {python_wasm!r}: name CPython's WASI build by python_wasm.")
        if stdlib is not None and not Path(stdlib).is_dir():
            raise ArlError(f"there is no folder {stdlib!r}: name the lib/python3.x of CPython's WASI build by stdlib.")
        self.python_wasm = python_wasm
        self.stdlib = stdlib
        self.timeout_s = timeout_s
        self.memory_mb = memory_mb
        self.max_output = max_output
        self._lock = threading.Lock()
        self._wasmtime: ModuleType = load_extra("wasmtime", extra="wasm")
        self._compiled: tuple[Any, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.python_wasm, self.stdlib, self.timeout_s, self.memory_mb, self.max_output)

    def run(self, code: str) -> Execution:
        """What the program printed, and its error; its own faults never raise.

        Raises:
            ArlError: the file is no WASI command.
        """
        if len(code) > LONGEST_PROGRAM:
            return Execution("", length_sentence())
        with self._lock:
            engine, module = self._compiled or self._compile()
            return _Instance(self, self._wasmtime, engine, module).run(code)

    def close(self) -> None:
        """The compiled interpreter is freed; the next program would compile it again."""
        with self._lock:
            self._compiled = None

    def _compile(self) -> tuple[Any, Any]:
        config = self._wasmtime.Config()
        config.epoch_interruption = True
        with suppress(self._wasmtime.WasmtimeError):  # nowhere to keep it: compile in each process
            config.cache = True
        engine = self._wasmtime.Engine(config)
        try:
            module = self._wasmtime.Module.from_file(engine, self.python_wasm)
        except self._wasmtime.WasmtimeError as error:
            raise ArlError(f"{self.python_wasm!r} is no WebAssembly module: name CPython's WASI build.") from error
        if "_start" not in [export.name for export in module.exports]:
            raise ArlError(f"{self.python_wasm!r} exports no _start: name CPython's WASI build of the command kind.")
        self._compiled = (engine, module)
        return self._compiled


class _OutputLimitError(Exception):
    """A program never stops printing."""


class _Instance:
    """One run of the interpreter."""

    def __init__(self, sandbox: WasmSandbox, wasmtime: ModuleType, engine: Any, module: Any) -> None:
        self._sandbox, self._wasmtime, self._engine, self._module = sandbox, wasmtime, engine, module
        self._head, self._tail = OutputHead(sandbox.max_output), ErrorTail()

    def run(self, code: str) -> Execution:
        """What the program left behind."""
        timer = threading.Timer(self._sandbox.timeout_s, self._engine.increment_epoch)
        timer.daemon = True
        store = self._store(code)
        timer.start()
        try:
            error = self._start(store)
        finally:
            timer.cancel()
            timer.join()  # a late tick would stop the next program
            store.close()
        self._head.feed(b"", final=True)
        return Execution(self._head.text(), error[: self._sandbox.max_output])

    def _store(self, code: str) -> Any:
        wasi = self._wasmtime.WasiConfig()
        variables = [("PYTHONHASHSEED", "0"), ("PYTHONDONTWRITEBYTECODE", "1")]
        if self._sandbox.stdlib is not None:
            wasi.preopen_dir(self._sandbox.stdlib, _STDLIB_IN_GUEST, False)
            variables.append(("PYTHONPATH", _STDLIB_IN_GUEST))
        wasi.env = variables
        wasi.argv = ["python", "-s", "-S", "-c", _PRELUDE, code.encode("utf-8", "surrogatepass").hex()]
        store = self._wasmtime.Store(self._engine)
        store.set_wasi(wasi)
        store.set_limits(memory_size=self._sandbox.memory_mb * 2**20, instances=1, memories=1, tables=4)
        store.set_epoch_deadline(1)
        return store

    def _start(self, store: Any) -> str:
        """The error with which the interpreter ends; empty when it ends well."""
        linker = self._wasmtime.Linker(self._engine)
        linker.define_wasi()
        linker.allow_shadowing = True
        word = self._wasmtime.ValType.i32()
        four_words = self._wasmtime.FuncType([word] * 4, [word])
        linker.define_func(_WASI, "fd_write", four_words, self._write, access_caller=True)
        linker.define_func(_WASI, "poll_oneoff", four_words, _never_wait)  # a sleeping host cannot be interrupted
        try:
            instance = linker.instantiate(store, self._module)
            instance.exports(store)["_start"](store)
        except self._wasmtime.ExitTrap as ending:
            return "" if ending.code == 0 else self._last_line() or f"exit status {ending.code}"
        except self._wasmtime.Trap as trap:
            if trap.trap_code == self._wasmtime.TrapCode.INTERRUPT:
                return time_sentence(self._sandbox.timeout_s)
            return f"the interpreter crashed ({trap.trap_code.name if trap.trap_code else 'trap'})"
        except _OutputLimitError:
            return output_sentence()
        except self._wasmtime.WasmtimeError as error:
            raise ArlError(f"{self._sandbox.python_wasm!r} does not start as a WASI command: {error}") from error
        return ""

    def _last_line(self) -> str:
        line = self._tail.last_line()
        return memory_sentence(self._sandbox.memory_mb) if line.partition(":")[0] == "MemoryError" else line

    def _write(self, caller: Any, descriptor: int, vectors: int, count: int, written: int) -> int:
        """WASI's fd_write for output and errors, which are the only things that can be written."""
        sinks: dict[int, OutputHead | ErrorTail] = {1: self._head, 2: self._tail}
        if descriptor not in sinks:
            return _BAD_DESCRIPTOR
        sink, memory, total = sinks[descriptor], caller.get("memory"), 0
        vectors, written = vectors & _WORD, written & _WORD  # addresses arrive as signed numbers
        if not 0 <= count <= _MOST_VECTORS or written + 4 > memory.data_len(caller):
            return _INVALID
        for at in range(vectors, vectors + 8 * count, 8):
            pair = memory.read(caller, at, at + 8)
            start, length = int.from_bytes(pair[:4], "little"), int.from_bytes(pair[4:], "little")
            chunk = bytes(memory.read(caller, start, start + length))
            sink.feed(chunk)
            total += len(chunk)
            if sink.total_bytes > OUTPUT_LIMIT_BYTES:
                raise _OutputLimitError
        memory.write(caller, total.to_bytes(4, "little"), written)
        return 0


def _never_wait(subscriptions: int, events: int, count: int, ready: int) -> int:  # noqa: ARG001  (WASI's signature)
    """WASI's poll_oneoff, not supported."""
    return _NOT_SUPPORTED
