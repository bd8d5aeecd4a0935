"""Bulkhead's engine against llama.cpp's, on the same files, in turns. scripts/bench-llamacpp runs this.

Both have the model loaded at once; each case is run by one and then by the other, `--rounds` times, after a round that
does not count. So both see the same weather. Loading is timed in fresh processes, one after the other.
Every record goes into --json as it is made; running again with the same file adds to it. --write puts medians into a document.
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

HERE = os.path.dirname(os.path.abspath(__file__))
ENGINES = ("bulkhead", "llama.cpp")
TYPES = ("q8_0", "q4_0", "q4_k_m")


def parser():
    p = argparse.ArgumentParser(prog="scripts/bench-llamacpp", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bulkhead", default=os.path.join(HERE, "../../bin/bulkhead"), help="the binary")
    p.add_argument("--models", required=True, help="a folder where model files are made and kept (4 GB)")
    p.add_argument("--only", default="", help="models whose names contain one of these, with commas")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--prompts", default="128,512,2048", help="one stream: lengths of prompt")
    p.add_argument("--batches", default="8,16,32", help="sequences at once")
    p.add_argument("--gen", type=int, default=32, help="tokens decoded of one stream")
    p.add_argument("--batch-prompt", type=int, default=32)
    p.add_argument("--batch-gen", type=int, default=16)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--again", type=int, default=3, help="times that a case is measured again because others took CPU meanwhile")
    p.add_argument("--around", type=shlex.split, default=[], help="a command that waits for the machine and runs its argument, such as 'flock FILE'")
    p.add_argument("--turn", type=float, default=75, help="seconds that a turn may last")
    p.add_argument("--json", help="records; added to")
    p.add_argument("--write", help="the document whose section is to be written")
    p.add_argument("--report", action="store_true", help="measure nothing")
    p.add_argument("--make-models", action="store_true", help="make the files and measure nothing")
    return p


def model_files(a):
    """name -> file, made where it is not there yet."""
    shipped = os.path.join(HERE, "../../models/smollm2-135m-instruct.gguf")
    base = os.path.join(a.models, "bench-1b-q8_0-seed1.gguf")
    files = {"135M q4_1": (shipped, None)}
    for t in TYPES:
        files[f"135M {t}"] = (os.path.join(a.models, f"smollm2-135m-{t}.gguf"), ["--from", shipped, "--type", t])
    for t in TYPES:
        files[f"1B {t}"] = (os.path.join(a.models, f"bench-1b-{t}-seed1.gguf"), ["--from", base, "--type", t] if t != "q8_0" else [])
    only = [w for w in a.only.split(",") if w]
    files = {n: f for n, f in files.items() if not only or any(w in n for w in only)}
    os.makedirs(a.models, exist_ok=True)
    make = [sys.executable, os.path.join(HERE, "../make-bench-model")]
    if any(n.startswith("1B") for n in files) and not os.path.exists(base):
        subprocess.run([*make, "--out", base], check=True)
    for name, (path, options) in files.items():
        if not os.path.exists(path):
            if options is None:
                sys.exit(f"{path} is not there: run scripts/get-model")
            subprocess.run([*make, "--out", path, *options], check=True, stdout=sys.stderr, stderr=subprocess.DEVNULL)
    return {n: f[0] for n, f in files.items()}


class Engine:
    """A process that has loaded a model and answers cases."""

    def __init__(self, a, name, path):
        command = {
            "bulkhead": [a.bulkhead, "bench", "engine", "--cases", "--model", path, "--threads", str(a.threads)],
            "llama.cpp": [sys.executable, os.path.join(HERE, "llamacpp_engine.py"), "--model", path, "--threads", str(a.threads)],
        }[name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.loaded = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.process.args[0]} ended with status {self.process.wait()}")
        return json.loads(line)

    def run(self, case):
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def expected(case, seen):
    """Seconds that a case will take an engine, by the rates of a short run; long prompts are a little slower."""
    return case["batch"] * (1.3 * case["prompt"] / seen["prompt_tok_s"] + 1.3 * case["gen"] / seen["gen_tok_s"])


def stream(a):
    out = subprocess.run([a.bulkhead, "bench", "stream", "--threads", str(a.threads), "--repeat", "3", "--json"], capture_output=True, text=True, check=True)
    return json.loads(out.stdout)["median_gb_s"]


def numbers(s):
    return [int(x) for x in s.split(",") if x]


def measure(a, model, path, records):
    turns = common.Turns(a.around, a.turn)
    cases = [{"prompt": n, "gen": a.gen, "batch": 1} for n in numbers(a.prompts)]
    cases += [{"prompt": a.batch_prompt, "gen": a.batch_gen, "batch": n} for n in numbers(a.batches)]
    turns.need(30)
    engines = {}
    try:
        for i in range(a.rounds):  # the last pair stays
            for name in ENGINES:
                if i:
                    engines[name].close()
                engines[name] = Engine(a, name, path)
                records.append({"model": model, "engine": name, "kind": "load", "round": i, **engines[name].loaded})
                # Memory of one case in a fresh process: Bulkhead's pages of earlier cases stay until the process ends.
                held = engines[name].run({"prompt": 512, "gen": 2, "batch": 1})["rss_bytes"]
                records.append({"model": model, "engine": name, "kind": "memory", "round": i, "rss_bytes": held})
        for case in cases:
            took = 20.0  # of both engines together, a guess before the short run
            i, again = -1, a.again
            while i < a.rounds:
                if i < 0:  # a short run first: code, pages and buffers are warm afterwards
                    turns.need(took)
                    warm = {"prompt": min(case["prompt"], 64), "gen": 2, "batch": case["batch"]}
                    took = sum(expected(case, engines[name].run(warm)) for name in ENGINES)
                    i = 0
                    continue
                turns.need(took + 4)  # 4: reading memory
                start = time.monotonic()
                fresh = [{"model": model, "engine": "memory", "kind": "stream", "round": i, "gb_s": stream(a), **case}]
                others = common.Others([e.process.pid for e in engines.values()])
                for name in (ENGINES if i % 2 == 0 else ENGINES[::-1]):
                    fresh.append({"model": model, "engine": name, "kind": "case", "round": i, **case, **engines[name].run(case)})
                took, share = time.monotonic() - start, others.share()
                if (turns.lost() or share > others.DISTURBED) and again > 0:
                    print(f"{model}: {case}: disturbed (others took {share:.2f} cores), again", file=sys.stderr)
                    again -= 1
                    continue
                i += 1
                for r in fresh:
                    r["others"] = share
                records.extend(fresh)
                print(model, case, *(f"{r['engine']} {r['prompt_tok_s']:.0f}/{r['gen_tok_s']:.1f}" for r in fresh[1:]), f"{fresh[0]['gb_s']:.1f} GB/s", file=sys.stderr)
    finally:
        turns.end()
        for e in engines.values():
            e.close()


def info(a):
    about = json.loads(subprocess.run([sys.executable, os.path.join(HERE, "llamacpp_engine.py"), "--info"], capture_output=True, text=True, check=True).stdout)
    version = subprocess.run([a.bulkhead, "version"], capture_output=True, text=True).stdout.split()
    return {"cpu": common.cpu(), "threads": a.threads, "llama_cpp_python": about["version"], "llama_cpp": about["system"],
            "bulkhead": " ".join(version), "date": datetime.date.today().isoformat()}


def pick(records, field, **want):
    """Of the undisturbed records, if there are any."""
    found = [r for r in records if all(r.get(k) == v for k, v in want.items())]
    return [r[field] for r in [r for r in found if r.get("others", 0) <= common.Others.DISTURBED] or found]


def report(data):
    records, about = data["records"], data["about"]
    c = about["cpu"]
    lines = [
        f"CPU: {c['name']} (family {c['family']}, model {c['model']}), {c['cores']} cores, L2 {c['l2']}, L3 {c['l3']}; {' '.join(c['flags'])}. {about['threads']} threads.",
        f"llama.cpp: llama-cpp-python {about['llama_cpp_python']}: {about['llama_cpp']}. {about['date']}.", "",
    ]
    names = list(dict.fromkeys(r["model"] for r in records))

    def both(fmt, field, **want):
        """The two medians and their ratio, as cells."""
        b, l = (common.median(pick(records, field, engine=e, **want)) for e in ENGINES)
        return None if b is None or l is None else (fmt(b), fmt(l), b / l)

    def rows(title, head, cells):
        if cells:
            lines.extend([f"**{title}**", "", *common.table(head, cells), ""])

    rate = lambda v: f"{v:.0f}" if v >= 100 else f"{v:.1f}"
    for title, field, batched in (("Prefill, tokens per second", "prompt_tok_s", False), ("Decode of one stream after that prompt, tokens per second", "gen_tok_s", False),
                                  ("Batched decode, tokens per second of all sequences", "gen_tok_s", True)):
        cells = []
        for m in names:
            cases = sorted({(r["prompt"], r["batch"]) for r in records if r["model"] == m and r["kind"] == "case" and (r["batch"] > 1) == batched})
            for prompt, batch in cases:
                got = both(rate, field, model=m, kind="case", prompt=prompt, batch=batch)
                if got:
                    memory = common.median(pick(records, "gb_s", model=m, kind="stream", prompt=prompt, batch=batch))
                    n = len(pick(records, field, engine="bulkhead", model=m, kind="case", prompt=prompt, batch=batch))
                    cells.append([m, batch if batched else prompt, got[0], got[1], f"**{got[2]:.2f}x**", f"{memory:.1f}", n])
        rows(title, ["model", "batch" if batched else "prompt", "Bulkhead", "llama.cpp", "ratio", "memory read GB/s", "rounds"], cells)
    cells = []
    for m in names:
        got = both(lambda v: f"{v:.2f}", "load_s", model=m, kind="load")
        held = both(lambda v: f"{v / 2**20:.0f}", "rss_bytes", model=m, kind="memory") or both(lambda v: f"{v / 2**20:.0f}", "rss_bytes", model=m, kind="load")
        cells.append([m, got[0], got[1], f"**{got[2]:.2f}x**", held[0], held[1], f"**{held[2]:.2f}x**"])
    rows("Load, seconds, and resident memory after a prompt of 512, MiB (less is better)", ["model", "Bulkhead s", "llama.cpp s", "ratio", "Bulkhead MiB", "llama.cpp MiB", "ratio"], cells)
    return lines[:-1]


def main():
    a = parser().parse_args()
    data = common.load(a.json) or {"records": []}
    if a.make_models:
        model_files(a)
        return
    if not a.report:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the engines are ended, too
        data["about"] = info(a)
        for model, path in model_files(a).items():
            measure(a, model, path, data["records"])
            if a.json:
                common.save(a.json, data)
    lines = report(data)
    if a.write:
        common.write_section(a.write, "engine", lines)
    else:
        print("\n".join(lines))


if __name__ == "__main__":
    main()
