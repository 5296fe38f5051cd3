"""What a reader must know of the machine, without saying which one it is."""

import os
import re


def threads():
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _first(path, pattern):
    try:
        with open(path, encoding="utf-8") as file:
            found = re.search(pattern, file.read(), re.MULTILINE)
    except OSError:
        return None
    return found.group(1).strip() if found else None


def _vectors():
    flags = (_first("/proc/cpuinfo", r"^flags\s*:(.*)$") or "").split()
    known = [("avx2", "AVX2"), ("avx512f", "AVX-512"), ("avx512_vnni", "VNNI"), ("avx512_bf16", "BF16")]
    return [name for flag, name in known if flag in flags]


def describe():
    """One line: processors, name, last-level cache, memory."""
    name = _first("/proc/cpuinfo", r"^model name\s*:(.*)$") or "processor of unknown name"
    cache = _first("/sys/devices/system/cpu/cpu0/cache/index3/size", r"^(\d+)K")
    memory = _first("/proc/meminfo", r"^MemTotal:\s*(\d+) kB")
    parts = [f"{threads()} processors ({' '.join([name, *_vectors()])})"]
    parts.append(f"last-level cache {int(cache) // 1024} MiB" if cache else "last-level cache unknown")
    if memory:
        parts.append(f"{round(int(memory) / 1024**2)} GiB of memory")
    return ", ".join(parts)
