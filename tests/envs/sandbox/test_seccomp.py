"""The filter as the kernel would run it, for both architectures, on a machine written in twenty lines."""

import re
from pathlib import Path

import pytest

from arl_lightning.envs.sandbox import seccomp
from arl_lightning.envs.sandbox.seccomp import ALLOWED, AUDIT_ARCHITECTURES, EXAMINED, build_filter

KILL, ALLOW, EPERM, ENOTTY = 0x80000000, 0x7FFF0000, 0x00050001, 0x00050019
MACHINES = ["x86_64", "aarch64"]
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the machine's filter returns for a call."""
    record = number.to_bytes(4, "little") + (architecture or AUDIT_ARCHITECTURES[machine]).to_bytes(4, "little")
    record += bytes(8) + b"".join(word.to_bytes(8, "little") for word in (*arguments, *[0] * (6 - len(arguments))))
    steps, at, accumulator = build_filter(machine), 0, 0
    while True:
        code, true, false, operand = steps[at]
        at += 1
        if code == 0x20:
            accumulator = int.from_bytes(record[operand : operand + 4], "little")
        elif code == 0x06:
            return operand
        else:
            holds = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: bool(accumulator & operand)}[
                code
            ]
            at += true if holds else false


def number(name: str, machine: str) -> int:
    found = {**ALLOWED, **EXAMINED}[name][MACHINES.index(machine)]
    assert found is not None
    return found


@pytest.mark.parametrize("machine", MACHINES)
def test_only_named_calls_pass(machine: str) -> None:
    column = MACHINES.index(machine)
    allowed = {numbers[column] for numbers in ALLOWED.values()} - {None}
    examined = {numbers[column] for numbers in EXAMINED.values()} - {None}
    for call in range(1000):
        if call not in examined:
            assert verdict(machine, call) == (ALLOW if call in allowed else EPERM), call


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("architecture", [0x40000003, 0x40000028, 0xC000003E, 0xC00000B7])
def test_a_foreign_architecture_is_killed(machine: str, architecture: int) -> None:
    own = architecture == AUDIT_ARCHITECTURES[machine]  # i386, arm, x86_64, aarch64
    assert (verdict(machine, number("read", machine), architecture=architecture) == KILL) != own


def test_the_x32_interface_is_killed() -> None:
    assert verdict("x86_64", 0x40000000) == KILL
    assert verdict("x86_64", 0x40000000 + 39) == KILL
    assert verdict("x86_64", 0xFFFFFFFF) == KILL


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("flags", [0o1, 0o2, 0o100, 0o1000, 0o2000, 0o10000000, 0o20200002])
def test_files_open_for_reading_only(machine: str, flags: int) -> None:
    call = number("openat", machine)
    assert verdict(machine, call, 2**64 - 100, 0, 0o2000000) == ALLOW  # close on exec
    assert verdict(machine, call, 2**64 - 100, 0, 0o2000000 | flags) == EPERM


def test_the_old_open_has_its_flags_elsewhere() -> None:
    assert verdict("x86_64", 2, 0, 0o0) == ALLOW
    assert verdict("x86_64", 2, 0, 0o101) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_memory_is_never_written_and_executed(machine: str) -> None:
    mmap, mprotect = number("mmap", machine), number("mprotect", machine)
    anonymous_private, private = 0x22, 0x02
    assert verdict(machine, mmap, 0, 4096, 3, anonymous_private) == ALLOW
    assert verdict(machine, mmap, 0, 4096, 5, private) == ALLOW  # a shared library's code
    assert verdict(machine, mmap, 0, 4096, 5, anonymous_private) == EPERM
    assert verdict(machine, mmap, 0, 4096, 7, private) == EPERM
    assert verdict(machine, mprotect, 0, 4096, 1) == ALLOW
    assert verdict(machine, mprotect, 0, 4096, 5) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_decide_about_limits_and_descriptors(machine: str) -> None:
    prlimit, fcntl, ioctl = (number(name, machine) for name in ("prlimit64", "fcntl", "ioctl"))
    assert verdict(machine, prlimit, 0, 7, 0, 1) == ALLOW
    assert verdict(machine, prlimit, 1, 7, 0, 1) == EPERM
    assert verdict(machine, prlimit, 0, 7, 1, 1) == EPERM
    assert verdict(machine, prlimit, 0, 7, 1 << 32, 1) == EPERM  # a pointer whose low half is zero
    assert verdict(machine, fcntl, 1, 3) == ALLOW
    assert verdict(machine, fcntl, 1, 8) == EPERM  # F_SETOWN
    assert verdict(machine, fcntl, 1, 1031) == EPERM  # F_SETPIPE_SZ
    assert verdict(machine, ioctl, 1, 0x5412) == ENOTTY


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_the_kernel_s(machine: str) -> None:
    if not HEADERS[machine].is_file():
        pytest.skip("the kernel's headers are not installed")
    text = HEADERS[machine].read_text()
    kernel = {name: int(value) for name, value in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    kernel |= {"newfstatat": kernel.get("fstatat", kernel.get("newfstatat", -1))}
    for name, numbers in {**ALLOWED, **EXAMINED}.items():
        if (known := numbers[MACHINES.index(machine)]) is not None:
            assert kernel[name] == known, name


def test_an_instruction_is_eight_bytes() -> None:
    # code 0x15 as 16 bits, two jumps, operand as 32 bits, all little-endian
    assert seccomp.assemble([(0x15, 1, 2, 0x03040506)]) == bytes.fromhex("1500010206050403")


def test_an_unknown_processor_has_no_table() -> None:
    with pytest.raises(KeyError):
        build_filter("riscv64")
