"""How much of the machine other processes used: a figure measured beside a compiler is worthless."""

import os
import time

TICKS = os.sysconf("SC_CLK_TCK")
IDLE, IOWAIT = 3, 4  # columns of /proc/stat's first line


def busy_seconds() -> float:
    """Processor seconds that this machine has spent on anything, stolen time included."""
    with open("/proc/stat") as stat:
        columns = [int(text) for text in stat.readline().split()[1:9]]
    return (sum(columns) - columns[IDLE] - columns[IOWAIT]) / TICKS


def own_seconds(pids: list[int]) -> float:
    """Processor seconds of this process, of its children that have ended, and of `pids`."""
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
    """From its making to `share()`."""

    def __init__(self, pids: list[int]):
        self.pids, self.start = pids, time.monotonic()
        self.busy, self.own = busy_seconds(), own_seconds(pids)

    def share(self) -> float:
        """Of all processors, what others took: 0 to 1. On short measurements a tick of 10 ms shows."""
        others = (busy_seconds() - self.busy) - (own_seconds(self.pids) - self.own)
        whole = (time.monotonic() - self.start) * (os.cpu_count() or 1)
        return max(0.0, others / whole)
