"""Writes a llama-family GGUF file as a Hugging Face folder, its weights dequantised to bf16.

    python gguf_to_hf.py models/smollm2-135m-instruct.gguf OUT

For servers that read no GGUF (vLLM): they get the values that the file holds, rounded to bf16.
Needs gguf, torch, safetensors and transformers.
"""
import json
import os
import sys

import gguf
import safetensors.torch
import torch
import transformers

LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}


def hf_name(name):
    if name in TOP:
        return TOP[name]
    _, layer, rest, kind = name.split(".")
    return f"model.layers.{layer}.{LAYER[rest]}.{kind}"


def unpermute(w, heads):
    """Rows from GGUF's llama pairing (2i with 2i+1) to the half-split rotary pairing of transformers."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def main(source, out):
    os.makedirs(out, exist_ok=True)
    reader = gguf.GGUFReader(source)

    def field(key, default=None):
        f = reader.fields.get("llama." + key)
        return default if f is None else f.contents()

    heads, kv_heads = field("attention.head_count"), field("attention.head_count_kv")
    weights = {}
    for t in reader.tensors:
        w = gguf.quants.dequantize(t.data, t.tensor_type)
        if t.name.endswith("attn_q.weight"):
            w = unpermute(w, heads)
        elif t.name.endswith("attn_k.weight"):
            w = unpermute(w, kv_heads)
        weights[hf_name(t.name)] = torch.from_numpy(w.copy()).to(torch.bfloat16)
    safetensors.torch.save_file(weights, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})

    tokenizer = transformers.AutoTokenizer.from_pretrained(os.path.dirname(source) or ".", gguf_file=os.path.basename(source))
    tokenizer.save_pretrained(out)
    embedding = weights["model.embed_tokens.weight"]
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_act": "silu",
        "hidden_size": embedding.shape[1], "vocab_size": embedding.shape[0], "num_hidden_layers": field("block_count"),
        "intermediate_size": field("feed_forward_length"), "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": embedding.shape[1] // heads, "max_position_embeddings": field("context_length"),
        "rms_norm_eps": field("attention.layer_norm_rms_epsilon"), "rope_theta": field("rope.freq_base", 10000.0),
        "rope_parameters": {"rope_type": "default", "rope_theta": field("rope.freq_base", 10000.0)},
        "tie_word_embeddings": "lm_head.weight" not in weights, "attention_bias": False, "mlp_bias": False,
        "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
    }
    with open(os.path.join(out, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
