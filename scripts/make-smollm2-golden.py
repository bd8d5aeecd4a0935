#!/usr/bin/env python3
"""Greedy continuations of SmolLM2-135M-Instruct by transformers, as a golden for internal/model.

    make-smollm2-golden.py models/smollm2-135m-instruct.gguf internal/model/testdata/smollm2.json

transformers' LlamaForCausalLM runs in f32 on CPU on the weights that the GGUF file holds, dequantised by
the gguf package. For each of 40 prompts it keeps the prompt's ids, 32 greedy ids, and the log probability
of each; the Go test feeds the same prefix and compares its own first choice.

Needs: numpy, torch (CPU), transformers, gguf, tokenizers.
"""

import json
import sys

import gguf
import numpy as np
import tokenizers
import torch
import transformers

NEW = 32

CHAT = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain photosynthesis to a ten year old.",
    "Give me three tips for sleeping better.",
    "Translate 'good morning' into Spanish, Italian and German.",
    "What is 17 + 25?",
    "Who wrote Pride and Prejudice?",
    "List the planets of the solar system in order.",
    "How do I boil an egg?",
    "What is the difference between a list and a tuple in Python?",
    "Summarise: The cat sat on the mat because the floor was cold. Later it moved to the chair.",
    "Tell me a joke about computers.",
    "Why is the sky blue?",
    "Suggest a name for a bakery by the river.",
    "What does HTTP stand for?",
    "Erkläre kurz, was ein Baum ist.",
    "¿Cuál es la capital de España?",
    "Quelle heure est-il ?",
    "Name a prime number greater than 100.",
    "Write one sentence with the words lantern, harbour and winter.",
]
TEXT = [
    "Once upon a time, in a village by the sea,",
    "The theory of evolution states that",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "import numpy as np\n\nx = np.arange(10)\nprint(",
    "SELECT name, age FROM users WHERE",
    "The quick brown fox",
    "1, 1, 2, 3, 5, 8, 13,",
    "In 1969, Neil Armstrong",
    "Dear Sir or Madam,\n\nI am writing to",
    "# Installation\n\nTo install the package, run\n\n```bash\n",
    "Water boils at 100 degrees Celsius because",
    "<html>\n<head>\n<title>",
    "The recipe needs two eggs, a cup of flour and",
    "Question: What is the largest ocean on Earth?\nAnswer:",
    "Ingredients:\n- 200 g sugar\n- 100 g butter\n-",
    "She opened the door slowly and saw",
    "Les enfants jouent dans",
    "a b c d e f g",
    "{\"name\": \"Alice\", \"age\": 30, \"city\":",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, it was the epoch of belief, it was the epoch of incredulity,",
]


def unpermute(w, heads):
    return w.reshape(heads, w.shape[0] // heads // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def load(path):
    r = gguf.GGUFReader(path)
    field = lambda k: r.fields[k].contents()
    heads, kv = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    config = transformers.LlamaConfig(
        vocab_size=len(field("tokenizer.ggml.tokens")), hidden_size=field("llama.embedding_length"),
        intermediate_size=field("llama.feed_forward_length"), num_hidden_layers=field("llama.block_count"),
        num_attention_heads=heads, num_key_value_heads=kv, max_position_embeddings=field("llama.context_length"),
        rms_norm_eps=field("llama.attention.layer_norm_rms_epsilon"), tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": field("llama.rope.freq_base")})
    names = {
        "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    state = {}
    for t in r.tensors:
        w = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        if t.name == "token_embd.weight":
            name = "model.embed_tokens.weight"
        elif t.name == "output_norm.weight":
            name = "model.norm.weight"
        else:
            _, layer, kind, _ = t.name.split(".")
            if kind in ("attn_q", "attn_k"):
                w = unpermute(w, heads if kind == "attn_q" else kv)
            name = f"model.layers.{layer}.{names[kind]}.weight"
        state[name] = torch.from_numpy(np.ascontiguousarray(w))
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = transformers.LlamaForCausalLM(config).float().eval()
    model.load_state_dict(state, strict=True)

    words, merges = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.merges")
    tok = tokenizers.Tokenizer(tokenizers.models.BPE(
        {w: i for i, w in enumerate(words)}, [tuple(m.split(" ")) for m in merges]))
    tok.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.add_special_tokens([w for w, t in zip(words, field("tokenizer.ggml.token_type")) if t == gguf.TokenType.CONTROL])
    tok.decoder = tokenizers.decoders.ByteLevel()
    return model, tok


def main():
    model, tok = load(sys.argv[1])
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    prompts = [f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n" for q in CHAT] + TEXT
    lines = []
    for text in prompts:
        prompt = tok.encode(text, add_special_tokens=False).ids
        ids, logprobs, step, past = [], [], torch.tensor([prompt]), None
        for _ in range(NEW):
            with torch.no_grad():
                out = model(step, past_key_values=past, use_cache=True)
            past = out.past_key_values
            lp = torch.log_softmax(out.logits[0, -1].double(), dim=-1)
            best = int(lp.argmax())
            ids.append(best)
            logprobs.append(round(float(lp[best]), 5))
            step = torch.tensor([[best]])
        print(repr(tok.decode(ids)), file=sys.stderr)
        lines.append(json.dumps({"prompt": prompt, "ids": ids, "logprobs": logprobs}))
    with open(sys.argv[2], "w") as f:
        f.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
