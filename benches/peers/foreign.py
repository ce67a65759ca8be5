"""Measures how much of the machine other processes used: a benchmark beside a compiler is worthless."""

import os
import time

TICKS = os.sysconf("SC_CLK_TCK")
IDLE, IOWAIT = 3, 4  # columns of /proc/stat's first line


def busy_seconds() -> float:
    """Busy processor seconds of this machine, including stolen time."""
    with open("/proc/stat") as stat:
        columns = [int(text) for text in stat.readline().split()[1:9]]
    return (sum(columns) - columns[IDLE] - columns[IOWAIT]) / TICKS


def own_seconds(pids: list[int]) -> float:
    """Processor seconds of this process, its ended children and `pids`."""
    mine = os.times()
    total = mine.user + mine.system + mine.children_user + mine.children_system
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / TICKS
        except OSError:  # it has ended
            continue
    return total


class Watch:
    """Measures from its creation to `share()`."""

    def __init__(self, pids: list[int]):
        self.pids, self.start = pids, time.monotonic()
        self.busy, self.own = busy_seconds(), own_seconds(pids)

    def share(self) -> float:
        """Fraction of processor time used by others. Ticks of 10 ms make short measurements coarse."""
        others = (busy_seconds() - self.busy) - (own_seconds(self.pids) - self.own)
        whole = (time.monotonic() - self.start) * (os.cpu_count() or 1)
        return max(0.0, others / whole)
