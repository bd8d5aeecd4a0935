"""What the two comparisons share: the machine's description, turns on a shared machine, a section of a document."""
import json
import os
import platform
import statistics
import subprocess
import time


def cpu():
    """The CPU's name, core count and the flags that decide which kernels run."""
    wanted = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "asimd", "asimddp", "i8mm", "sve")
    name, flags, cores = platform.processor() or platform.machine(), set(), 0
    try:
        with open("/proc/cpuinfo") as f:
            for line in f:
                key, _, value = line.partition(":")
                key, value = key.strip(), value.strip()
                cores += key == "processor"
                if key == "model name":
                    name = value
                elif key in ("flags", "Features"):
                    flags = set(value.split())
    except OSError:
        pass
    ids = {}
    try:
        for line in subprocess.run(["lscpu"], capture_output=True, text=True).stdout.splitlines():
            key, _, value = line.partition(":")
            ids[key.strip()] = value.strip()
    except OSError:
        pass
    return {"name": name, "cores": cores or os.cpu_count(), "flags": [w for w in wanted if w in flags],
            "family": ids.get("CPU family", "?"), "model": ids.get("Model", "?"), "l2": ids.get("L2 cache", "?"), "l3": ids.get("L3 cache", "?")}


def median(values):
    values = [v for v in values if v is not None]
    return statistics.median(values) if values else None


def cpu_seconds(pids=None):
    """CPU seconds used so far by the processes, or by everything on the machine; 0 where there is no /proc."""
    tick = os.sysconf("SC_CLK_TCK")
    try:
        if pids is None:
            with open("/proc/stat") as f:
                t = list(map(int, f.readline().split()[1:8]))
            return (sum(t) - t[3] - t[4]) / tick  # without idle and waiting for I/O
        used = 0
        for pid in pids:
            with open(f"/proc/{pid}/stat") as f:
                used += sum(map(int, f.read().rpartition(")")[2].split()[11:13]))
        return used / tick
    except OSError:
        return 0


class Others:
    """How much CPU others took meanwhile, in cores: over DISTURBED a measurement is to be made again."""

    DISTURBED = 0.1

    def __init__(self, pids):
        self.pids, self.began, self.before = pids, time.monotonic(), cpu_seconds() - self.own(pids)

    def own(self, pids):
        t = os.times()
        return cpu_seconds(pids) + t.user + t.system + t.children_user + t.children_system

    def share(self):
        return max(0.0, cpu_seconds() - self.own(self.pids) - self.before) / max(time.monotonic() - self.began, 1e-3)


class Turns:
    """Measures in turns of at most `limit` seconds.

    On a machine that others use too, `around` is a command that waits until the machine is ours and then
    runs the command that it is given, as flock and nice do. A turn begins when that command has begun.
    """

    def __init__(self, around, limit):
        self.around, self.limit, self.holder, self.since = around, limit, None, None

    def need(self, seconds):
        """Makes sure that the machine is ours for so long, with a new turn if need be."""
        if self.since is not None and (time.monotonic() - self.since + seconds <= self.limit or not self.around):
            return
        self.end()
        if self.around:
            self.holder = subprocess.Popen([*self.around, "sh", "-c", "echo ours; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            if self.holder.stdout.readline().strip() != "ours":
                raise SystemExit(f"{self.around[0]} did not run its command")
        self.since = time.monotonic()

    def lost(self):
        """Whether the turn was taken away before it ended: what was measured is then not to be used."""
        return self.holder is not None and self.holder.poll() is not None

    def end(self):
        if self.holder is not None:
            self.holder.stdin.close()
            self.holder.wait()
        self.holder = self.since = None


def write_section(path, name, lines):
    """Puts lines between the markers of that name, in place of what was there."""
    begin, end = f"<!-- {name}: generated, do not edit -->", f"<!-- {name}: end -->"
    with open(path) as f:
        text = f.read()
    if begin not in text or end not in text:
        raise SystemExit(f"{path} has no section {name}")
    head, rest = text.split(begin, 1)
    with open(path, "w") as f:
        f.write(head + begin + "\n" + "\n".join(lines) + "\n" + end + rest.split(end, 1)[1])


def table(head, rows):
    rows = [[str(c) for c in r] for r in rows]
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(r) + " |" for r in rows]


def save(path, data):
    with open(path + ".part", "w") as f:
        json.dump(data, f, indent=1)
        f.write("\n")
    os.replace(path + ".part", path)


def load(path):
    if path and os.path.exists(path):
        with open(path) as f:
            return json.load(f)
    return None
