"""How much memory there is and was."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch


def free_bytes(device: torch.device) -> int:
    """Bytes that could be allocated on the device now; on a CPU without Linux' account, a quarter of what it has."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    account = Path("/proc/meminfo")
    if account.is_file():
        lines = dict(line.split(":", 1) for line in account.read_text().splitlines())
        return 1024 * int(lines["MemAvailable"].split()[0])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4 if hasattr(os, "sysconf") else 2**31


def peak_bytes(device: torch.device) -> int:
    """Most bytes that this process had at once: allocated on a GPU, resident on a CPU; 0 where nobody counts."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
