"""llama.cpp's side of scripts/bench-llamacpp: speaks as `bulkhead bench engine --cases` does.

    python llamacpp_engine.py --model FILE --threads 2

Loads the model, prints {"load_s", "rss_bytes"}, then reads cases ({"prompt", "gen", "batch"}) and answers each with
{"prompt_tok_s", "gen_tok_s", "rss_bytes"}, a line each. It is the low-level API through ctypes, as llama-bench and
llama-batched-bench use it: tokens are given, not sampled, so llama.cpp is not charged for a sampler (Bulkhead's figures
contain one). Batch size 2048, micro-batch 512, flash attention and the rest as llama.cpp sets them by default.
"""
import argparse
import ctypes
import json
import sys
import time

import llama_cpp as ll

BATCH, MICRO_BATCH = 2048, 512
SPREAD, APART = 7919, 104729  # tokens as in bulkhead bench engine: over the whole vocabulary


def rss():
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024


@ll.llama_log_callback
def quiet(level, text, data):
    pass


class Engine:
    def __init__(self, a):
        self.threads, self.unified = a.threads, a.unified
        start = time.perf_counter()
        ll.llama_backend_init()
        params = ll.llama_model_default_params()
        self.model = ll.llama_model_load_from_file(a.model.encode(), params)
        if not self.model:
            sys.exit(f"llama.cpp does not load {a.model}")
        self.context(64, 1)  # usable, as Bulkhead's is when it says so
        self.load_s = time.perf_counter() - start
        self.vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))

    def context(self, tokens, batch):
        p = ll.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = -(-tokens // 256) * 256 * batch, BATCH, MICRO_BATCH, batch
        p.n_threads = p.n_threads_batch = self.threads
        p.kv_unified = self.unified
        p.no_perf = True
        ctx = ll.llama_init_from_model(self.model, p)
        if not ctx:
            sys.exit("llama.cpp makes no context")
        return ctx

    def decode(self, ctx, b, rows):
        """rows: (token, position, sequence, whether logits are wanted)."""
        for i, (token, pos, seq, want) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = token, pos, 1, seq, want
        b.n_tokens = len(rows)
        start = time.perf_counter()
        if ll.llama_decode(ctx, b) != 0:
            sys.exit("llama_decode failed")
        ll.llama_synchronize(ctx)
        return time.perf_counter() - start  # what Python does between calls is not counted

    def run(self, prompt, gen, batch):
        ctx = self.context(prompt + gen, batch)
        b = ll.llama_batch_init(max(BATCH, batch), 0, 1)
        rows = [((j * SPREAD + s * APART) % self.vocab, j, s, j == prompt - 1) for s in range(batch) for j in range(prompt)]
        seconds = sum(self.decode(ctx, b, rows[i:i + BATCH]) for i in range(0, len(rows), BATCH))
        prefill = prompt * batch / seconds
        seconds = 0.0
        for k in range(gen):
            seconds += self.decode(ctx, b, [(((k + 1) * APART + s * SPREAD) % self.vocab, prompt + k, s, True) for s in range(batch)])
        out = {"prompt_tok_s": prefill, "gen_tok_s": gen * batch / seconds, "rss_bytes": rss()}
        ll.llama_batch_free(b)
        ll.llama_free(ctx)
        return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--unified", action="store_true", help="one KV buffer for all sequences")
    p.add_argument("--info", action="store_true", help="print how llama.cpp was built, and end")
    p.add_argument("--verbose", action="store_true")
    a = p.parse_args()
    if a.info:
        print(json.dumps({"version": ll.__version__, "system": ll.llama_print_system_info().decode().strip(" |")}))
        return
    if not a.verbose:
        ll.llama_log_set(quiet, ctypes.c_void_p())
    engine = Engine(a)
    print(json.dumps({"load_s": engine.load_s, "rss_bytes": rss()}), flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps(engine.run(case["prompt"], case["gen"], case["batch"])), flush=True)


if __name__ == "__main__":
    main()
