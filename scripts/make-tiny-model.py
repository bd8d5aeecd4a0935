#!/usr/bin/env python3
"""Makes tiny random models as GGUF files, with the logits that transformers computes for them.

    make-tiny-model.py --out tiny.gguf --golden tiny.json --arch llama --hidden 32 ...
    make-tiny-model.py --out chat.gguf --chat --type q8_0 --context 16384
    make-tiny-model.py --testdata internal/model/testdata      # the committed set

The oracle is transformers' own modelling code on CPU in f32, run on the weights exactly as the file
holds them (dequantised, if they were quantised). Two sets of logits are kept:

  logits      with Bulkhead's own roundings put in: K and V are rounded to f16 on their way into attention, as
              its pages hold them, and what is multiplied by a quantised matrix is rounded to 8 bits per 32 values
  logits_f32  transformers as it is; the distance between the two is what the roundings cost

Needs: numpy, torch (CPU), transformers, gguf, and tokenizers for --chat.
"""

import argparse
import json
import os

import gguf
import numpy as np
import torch
import transformers
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

QUANTS = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q5_0": gguf.GGMLQuantizationType.Q5_0,
    "q5_1": gguf.GGMLQuantizationType.Q5_1,
}


def attention_f16kv(module, query, key, value, attention_mask=None, scaling=None, dropout=0.0, **kwargs):
    """Plain causal attention over K and V as an f16 cache would hold them."""
    groups = query.shape[1] // key.shape[1]
    key = key.half().float().repeat_interleave(groups, dim=1)
    value = value.half().float().repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(2, 3) * scaling
    n = scores.shape[-1]
    causal = torch.triu(torch.full((n, n), float("-inf")), diagonal=1)
    out = torch.softmax(scores + causal[-scores.shape[-2] :], dim=-1) @ value
    return out.transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register("f16kv", attention_f16kv)


def parser():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--testdata", help="write the committed set of models and goldens into this folder")
    p.add_argument("--out", help="GGUF file to write")
    p.add_argument("--golden", help="JSON file with reference logits to write")
    p.add_argument("--name", default="tiny")
    p.add_argument("--arch", default="llama", choices=["llama", "qwen2", "qwen3"])
    p.add_argument("--vocab", type=int, default=64)
    p.add_argument("--hidden", type=int, default=32)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--kv-heads", type=int, default=4)
    p.add_argument("--head-dim", type=int, default=8)
    p.add_argument("--ffn", type=int, default=48)
    p.add_argument("--context", type=int, default=256)
    p.add_argument("--tied", action="store_true", help="the embedding is the output head too")
    p.add_argument("--rope-theta", type=float, default=10000.0)
    p.add_argument("--rope-linear", type=float, help="linear position scaling factor")
    p.add_argument("--rope-llama3", help="factor,low,high,original context: Llama 3 scaling as rope_freqs.weight")
    p.add_argument("--type", default="f32", choices=sorted(QUANTS), help="type of the layers' matrices")
    p.add_argument("--embed-type", choices=sorted(QUANTS), help="type of embedding and head (default: --type)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--tokens", type=int, default=70, help="length of the golden prompt")
    p.add_argument("--chat", action="store_true", help="add a byte-level BPE tokenizer and a ChatML template (vocab 512)")
    return p


def rope_parameters(a):
    r = {"rope_type": "default", "rope_theta": a.rope_theta}
    if a.rope_linear:
        r |= {"rope_type": "linear", "factor": a.rope_linear}
    if a.rope_llama3:
        factor, low, high, ctx = (float(x) for x in a.rope_llama3.split(","))
        r |= {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
              "original_max_position_embeddings": int(ctx)}
    return r


def build(a):
    """A random model whose activations stay near 1, so that every part of it shows in the logits."""
    torch.manual_seed(a.seed)
    common = dict(
        vocab_size=a.vocab, hidden_size=a.hidden, intermediate_size=a.ffn, num_hidden_layers=a.layers,
        num_attention_heads=a.heads, num_key_value_heads=a.kv_heads, head_dim=a.head_dim,
        max_position_embeddings=a.context, tie_word_embeddings=a.tied, rms_norm_eps=1e-5,
        rope_parameters=rope_parameters(a), attn_implementation="eager",
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )
    if a.arch == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**common))
    elif a.arch == "qwen2":
        del common["head_dim"]
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**common))
    else:
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**common))
    model = model.float().eval()
    gen = torch.Generator().manual_seed(a.seed)
    with torch.no_grad():
        for name, w in model.named_parameters():
            r = torch.randn(w.shape, generator=gen)
            if "norm" in name:
                w.copy_(1 + 0.2 * r)
            elif name.endswith("bias"):
                w.copy_(0.3 * r)
            elif "embed" in name:
                w.copy_(r)
            else:
                w.copy_(r * 1.5 / w.shape[1] ** 0.5)
    return model


def permute(w, heads):
    """Rows from transformers' half-split rotary pairing to GGUF's llama pairing (2i with 2i+1)."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def unpermute(w, heads):
    return w.reshape(heads, w.shape[0] // heads // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def gguf_name(name):
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
           "lm_head.weight": "output.weight"}
    if name in top:
        return top[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{LAYER[rest]}"


def write(a, model):
    """Writes the file, and puts back into the model the weights as the file holds them."""
    w = gguf.GGUFWriter(a.out, a.arch)
    w.add_name(a.name)
    w.add_context_length(a.context)
    w.add_embedding_length(a.hidden)
    w.add_block_count(a.layers)
    w.add_feed_forward_length(a.ffn)
    w.add_head_count(a.heads)
    w.add_head_count_kv(a.kv_heads)
    w.add_key_length(a.head_dim)
    w.add_value_length(a.head_dim)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(a.rope_theta)
    w.add_rope_dimension_count(a.head_dim)
    w.add_vocab_size(a.vocab)
    if a.rope_linear:
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(a.rope_linear)
    if a.rope_llama3:
        plain = a.rope_theta ** -(np.arange(0, a.head_dim, 2, dtype=np.float64) / a.head_dim)
        scaled = model.model.rotary_emb.inv_freq.double().numpy()
        w.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))
    if a.chat:
        add_tokenizer(w, a)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if a.tied and name == "lm_head.weight":
                continue
            data = p.numpy()
            heads = {"q_proj.weight": a.heads, "k_proj.weight": a.kv_heads}.get(name.split(".", 4)[-1])
            if a.arch != "llama":
                heads = None
            if heads:
                data = permute(data, heads)
            edge = name.startswith(("model.embed", "lm_head"))
            kind = QUANTS[(a.embed_type or a.type) if edge else a.type] if data.ndim == 2 else QUANTS["f32"]
            raw = gguf.quants.quantize(np.ascontiguousarray(data), kind)
            w.add_tensor(gguf_name(name), raw, raw_dtype=kind)
            back = gguf.quants.dequantize(raw, kind).astype(np.float32).reshape(data.shape)
            if heads:
                back = unpermute(back, heads)
            p.copy_(torch.from_numpy(np.ascontiguousarray(back)))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def round_inputs(model):
    """Rounds the input of every matrix to int8 with one scale per 32 values, as the CPU kernels do."""

    def hook(module, args):
        x = args[0].reshape(*args[0].shape[:-1], -1, 32)
        most = x.abs().amax(dim=-1, keepdim=True)
        return (((most / 127) * torch.round(x * (127 / most))).reshape(args[0].shape),)

    return [m.register_forward_pre_hook(hook) for m in model.modules() if isinstance(m, torch.nn.Linear)]


def golden(a, model):
    rng = np.random.default_rng(a.seed)
    tokens = rng.integers(0, a.vocab, a.tokens).tolist()
    rows = sorted({0, 1, 2, 7, 31, 62, 63, 64, 65, a.tokens - 1} & set(range(a.tokens)))
    out = {"tokens": tokens, "rows": rows}
    for key, attention in (("logits", "f16kv"), ("logits_f32", "eager")):
        model.set_attn_implementation(attention)
        hooks = round_inputs(model) if key == "logits" and a.type.startswith("q") else []
        with torch.no_grad():
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
        for h in hooks:
            h.remove()
        out[key] = [[float(f"{x:.7g}") for x in logits[r].tolist()] for r in rows]
    with open(a.golden, "w") as f:
        f.write("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in out.items()) + "\n}\n")
    d = np.abs(np.array(out["logits"]) - np.array(out["logits_f32"])).max() / np.abs(out["logits"]).max()
    print(f"{a.golden}: rounding moves a logit by at most {d:.1e} of the largest")


CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# What the merges are learned from: enough English to make short prompts short.
CORPUS = """
The capital of France is Paris. What is the capital of Germany? The answer is Berlin, and the river there is the Spree.
You are a helpful assistant. Please write a short story about a lighthouse keeper who counts the ships that pass in the night.
Once upon a time there was a small town between the mountains and the sea, where nothing ever happened in the winter.
How do I sort a list of numbers in the order of their size? First compare the first two numbers, then the next two, and so on.
The quick brown fox jumps over the lazy dog. Every request belongs to one tenant, and every page belongs to one request.
There are more things in heaven and earth than are dreamt of in your philosophy. To be, or not to be: that is the question.
It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.
function main returns the number of words in the file; for each line, if the line is not empty, count the words and add them.
"""


def add_tokenizer(w, a):
    import tokenizers

    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tok = tokenizers.Tokenizer(tokenizers.models.BPE())
    tok.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=a.vocab, special_tokens=specials, show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator([CORPUS], trainer)
    model = json.loads(tok.to_str())["model"]
    words = [t for t, _ in sorted(model["vocab"].items(), key=lambda kv: kv[1])]
    if len(words) != a.vocab:
        raise SystemExit(f"the corpus gives {len(words)} tokens, not {a.vocab}")
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(words)
    w.add_token_types([control if t in specials else normal for t in words])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    w.add_pad_token_id(2)
    w.add_add_bos_token(False)
    w.add_add_space_prefix(False)
    w.add_chat_template(CHATML)


def make(a):
    if a.chat:
        a.vocab = 512
    if a.golden is None and a.out is None:
        raise SystemExit("nothing to do: give --out or --testdata")
    model = build(a)
    write(a, model)
    print(f"{a.out}: {os.path.getsize(a.out)} bytes")
    if a.golden:
        golden(a, model)


# The committed set; the names say what each is there for. Seeds are ones where no value lies so close to
# the middle between two f16 or int8 numbers that two correct orders of summing round it apart.
TESTDATA = {
    "llama-mha-tied": "--tied",
    "llama-gqa": "--kv-heads 2 --seed 2",
    "llama-linear": "--kv-heads 1 --rope-linear 4 --seed 3",
    "llama-llama3": "--kv-heads 2 --head-dim 16 --heads 2 --rope-theta 1000 --rope-llama3 8,1,4,64 --seed 21",
    "llama-wide-heads": "--hidden 24 --heads 3 --kv-heads 1 --head-dim 16 --tied --seed 5",
    "llama-odd": "--hidden 36 --heads 6 --kv-heads 2 --head-dim 6 --ffn 50 --vocab 61 --layers 3 --seed 23",
    "llama-q8_0": "--kv-heads 2 --ffn 64 --type q8_0 --seed 20",
    "llama-q4_1": "--kv-heads 2 --ffn 64 --type q4_1 --embed-type q8_0 --tied --seed 8",
    "qwen2": "--arch qwen2 --kv-heads 2 --rope-theta 1000000 --seed 9",
    "qwen3": "--arch qwen3 --heads 3 --kv-heads 1 --head-dim 16 --tied --rope-theta 1000000 --seed 10",
}
CHAT = "--chat --type q8_0 --hidden 64 --layers 3 --heads 4 --kv-heads 2 --head-dim 16 --ffn 192 --context 16384 --rope-theta 100000 --seed 34"


def main():
    a = parser().parse_args()
    if not a.testdata:
        return make(a)
    for name, line in TESTDATA.items():
        base = os.path.join(a.testdata, name)
        make(parser().parse_args(["--out", base + ".gguf", "--golden", base + ".json", "--name", name] + line.split()))
    base = os.path.join(a.testdata, "tiny-chat")
    make(parser().parse_args(["--out", base + ".gguf", "--golden", base + ".json", "--name", "Tiny Chat"] + CHAT.split()))


if __name__ == "__main__":
    main()
