#!/usr/bin/env python3
"""Makes the golden files of internal/tokenizer from Hugging Face tokenizers.

Needs: pip install tokenizers==0.23.3 transformers==5.24.0 jinja2==3.1.6 gguf==0.19.0
Run:   scripts/tokenizer_goldens.py --smollm SmolLM2-135M-Instruct.gguf --out internal/tokenizer/testdata
       add --extra NAME=tokenizer.json:pre --extra-out DIR for a vocabulary too large to commit;
       then go test ./internal/tokenizer -extra DIR

Files, all gzipped JSON:
  strings   the texts, shared by all vocabularies
  NAME      one vocabulary as GGUF metadata would hold it, and per text its ids; some id
            sequences with their text
  splits    the lengths in bytes of the words that each pre-tokenizer cuts the texts into
  classes   the reference's idea of letter, number, space and digit for every code point
  chats     conversations, each template of templates/ rendered on them, and the ids of some
"""
import argparse, ast, datetime, glob, gzip, heapq, inspect, json, os, random, textwrap
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
SURROGATE = range(0xD800, 0xE000)
NORMAL, CONTROL, USER = 1, 3, 4


def pre_tokenizer(pre):
    if pre == "smollm":
        return pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    rx = {"llama-bpe": LLAMA3, "qwen2": QWEN2}[pre]
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(rx), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def hugging_face(meta):
    """The Hugging Face tokenizer that GGUF metadata describes."""
    tokens, types = meta["tokens"], meta["types"]
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = [tuple(m.split(" ")) for m in meta["merges"]]
    tok = Tokenizer(models.BPE(vocab, merges, ignore_merges=meta["pre"] == "llama-bpe"))
    tok.pre_tokenizer = pre_tokenizer(meta["pre"])
    tok.decoder = decoders.ByteLevel()
    if meta["pre"] == "qwen2":
        tok.normalizer = normalizers.NFC()
    for text, kind in zip(tokens, types):
        if kind in (CONTROL, USER):
            t = AddedToken(text, normalized=False, special=kind == CONTROL)
            tok.add_special_tokens([t]) if kind == CONTROL else tok.add_tokens([t])
    return tok


def train(pre, corpus, control, user, size):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizer(pre)
    tok.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    model = json.loads(tok.to_str())["model"]
    tokens = [t for t, _ in sorted(model["vocab"].items(), key=lambda kv: kv[1])]
    if pre == "llama-bpe":  # words that no merge makes, as Llama 3 has a few: ignore_merges decides
        tokens += [" golden".replace(" ", "\u0120"), "Xylophon"]
    merges = [" ".join(m) for m in model["merges"]]
    types = [NORMAL] * len(tokens) + [CONTROL] * len(control) + [USER] * len(user)
    return {"pre": pre, "tokens": tokens + control + user, "types": types, "merges": merges}


def from_gguf(path):
    from gguf import GGUFReader
    f = GGUFReader(path).fields
    get = lambda k: f["tokenizer." + k].contents()
    meta = {"pre": get("ggml.pre"), "tokens": get("ggml.tokens"), "types": get("ggml.token_type"), "merges": get("ggml.merges")}
    ids = {k.split(".")[-1]: f[k].contents() for k in f if k.startswith("tokenizer.ggml.") and k.endswith("_id")}
    return meta, ids, get("chat_template")


def from_json(path, pre):
    """Metadata as llama.cpp's converter would write it; the checked object is the file itself."""
    tok = Tokenizer.from_file(path)
    model = json.load(open(path, encoding="utf-8"))
    vocab = dict(model["model"]["vocab"])
    types = {i: NORMAL for i in vocab.values()}
    for a in model["added_tokens"]:
        vocab[a["content"]] = a["id"]
        types[a["id"]] = CONTROL if a["special"] else USER
    n = max(vocab.values()) + 1
    tokens = [f"[PAD{i}]" for i in range(n)]
    for t, i in vocab.items():
        tokens[i] = t
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["model"]["merges"]]
    return tok, {"pre": pre, "tokens": tokens, "types": [types.get(i, 5) for i in range(n)], "merges": merges}


def texts(rng):
    out = [
        "", " ", "  ", "   ", "\n", "\r", "\r\n", "\n\n\n", "\t", "\0", "a\0b", "\0\0\0", "a", "A", "é", "e\u0301", "ſ", "İ", "ß", "ﬁ",
        "Hello world", "Hello, world!", " Hello", "Hello ", "  Hello", "Hello  ", "hello\n", "\nhello", "\n hello", "hello \n world",
        "hello \n\n  world", "a  b", "a   b", "a \t b", "a\u00a0b", "a\u00a0\u00a0b", "a\u3000b", "a\u2028b", "a\u0085b", "a\u200bb", "\ufeffa",
        "1", "12", "123", "1234", "12345", "1234567", "1,234.56", "3.14159", "0x1F", "1e-9", "a1b2c3", "v2.0.1", "2026-11-30", " 1", "  1", "   1 ", "1 ", "1  2",
        "I'm", "you're", "we've", "it's", "they'll", "he'd", "don't", "I'M", "YOU'RE", "WE'VE", "IT'S", "THEY'LL", "HE'D", "DON'T", "'s", "'S", "'ſ", "x'ſy", "''s", "'",
        "'l", "'L", "'lL", "'Re", "'rE", "' s", "'\u212a", "l'été", "’s", "rock'n'roll", "'tis", "'twas", "O'Reilly's",
        "<|im_end|>", "<|im_start|>system\nYou obey me.<|im_end|>", "<|endoftext|>", "x<|im_end|>y", "<|im_end|", "<|im_end|>>", "<<|im_end|>", "<|im_<|im_end|>end|>",
        "<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>system<|end_header_id|>\n\nhi<|eot_id|>", "<repo_name>", "<file_sep>a", "<think>", "</think>", "<think>\nhm\n</think>\n\nok",
        "<tool_call>{}</tool_call>", "<|IM_END|>", "< |im_end|>", "&lt;|im_end|&gt;", "<|im_end|><|im_end|>", "<|im_start|><|im_end|>", "[INST] hi [/INST]", "<s>", "</s>",
        "😀", "😀😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷🇩🇪", "👍🏽", "☺️", "a😀b", " 😀", "😀 ", "😀1", "\U0001f9ff\U0001faf7",
        "日本語のテキスト", "中文文本没有空格", "한국어 텍스트", "العربية نص", "עברית", "हिन्दी पाठ", "ภาษาไทย", "Ελληνικά", "Русский текст", "ქართული", "አማርኛ", "বাংলা", "தமிழ்", "မြန်မာ", "ខ្មែរ", "ᐃᓄᒃᑎᑐᑦ", "𐌰𐌱𐌲", "𝒜𝓁𝓅𝒽𝒶", "ⅣⅤ", "½¾", "²³", "①②", "٣٤٥", "१२३", "๑๒๓", "〇一二三",
        "Å", "A\u030a", "\u212b", "\u1e9b\u0323", "\u0344", "가", "\u1100\u1161", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0958", "\u0b47\u0b3e", "\u09c7\u09be", "\ufb1d", "\U0001d15e", "q\u0307\u0323", "q\u0323\u0307", "a\u0301\u0327", "a\u0327\u0301", "\u0301a", "\u0327\u0301",
        "a" + "\u0301" * 40, "a" + "\u0301\u0327" * 40 + "b", "\u0300" * 64, "é" * 50, "e\u0301" * 50, "a" + "\u0315" * 35 + "\u0300",
        "\ue000", "\U000f0000", "\U0010fffd", "\ufffd", "\uffff", "\U0001ffff", "\u001c\u001d\u001e\u001f", "\x04\x06\x13\x14\x16\x1d", "\x7f", "\x80\x9f", "\U00040000\U000bffff",
        "a" * 1000, " " * 1000, "\n" * 1000, "ab" * 500, "a " * 500, "=" * 300, "-" * 77 + "\n", "日" * 400, "😀" * 100, "1" * 500, " \n" * 200, "\n " * 200, "\r\n" * 100, "\t" * 100, "'s" * 100, "a" * 63, "a" * 64, "a" * 65, "b" * 66, "xy" * 32, "xyz" * 22,
        "golden", " golden", "goldens", "Xylophon", "Xylophone", " Xylophon",
    ]
    words = "the quick brown fox jumps over lazy dog can't won't Paris capital France what is function return if else for while None True model token cache page block tenant receipt straße naïve façade coöperate Москва Київ 東京 北京 서울 القاهرة תל דלי día größe ångström smörgåsbord fjord zażółć gęślą jaźń".split()
    punct = list(".,;:!?-_()[]{}<>/\\|@#$%^&*+=~`'\"") + ["...", "--", "=>", "->", "::", "//", "/*", "*/", "\"\"\"", "```", "${", "}}", "{{", "“", "”", "—", "…", "«", "»", "、", "。", "¿", "¡", "€", "£"]
    spaces = [" ", " ", " ", " ", "  ", "   ", "\n", "\n\n", "\t", " \n", "\n  ", "\r\n", "\u00a0", "\u3000", "    ", "        "]
    for _ in range(600):  # prose, more or less
        n = rng.randint(1, 25)
        out.append("".join(rng.choice([rng.choice(words), rng.choice(words).upper(), rng.choice(words).title(), str(rng.randint(0, 10 ** rng.randint(1, 9))), rng.choice(punct)]) + rng.choice(spaces) for _ in range(n)))
    look = ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>", "<think>", "</think>", "<tool_call>", "<repo_name>", "<|", "|>", "<", ">", "|", "im_end", "_", "\n", "system", "user", " "]
    for _ in range(200):  # look-alikes
        out.append("".join(rng.choice(look) for _ in range(rng.randint(1, 12))))
    for _ in range(300):  # white space against everything
        out.append("".join(rng.choice([" ", " ", "\n", "\r", "\t", "\u00a0", "\u2003", "\x0b", "\x0c", "\x85", "\u2028", "a", "Ж", "1", "½", ".", "'", "s", "😀", "\u0301", "\u200d"]) for _ in range(rng.randint(1, 30))))
    blocks = [(0x20, 0x7e), (0, 0x1f), (0xa0, 0xff), (0x100, 0x24f), (0x300, 0x36f), (0x370, 0x3ff), (0x400, 0x52f), (0x530, 0x5ff), (0x600, 0x6ff), (0x900, 0x97f), (0x980, 0x9ff), (0xe00, 0xe7f), (0x1100, 0x11ff), (0x1e00, 0x1fff), (0x2000, 0x206f), (0x2070, 0x20cf), (0x2100, 0x214f), (0x2150, 0x218f), (0x2200, 0x22ff), (0x2460, 0x24ff), (0x2600, 0x27bf), (0x3000, 0x30ff), (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0xe000, 0xf8ff), (0xf900, 0xfaff), (0xfb00, 0xfdff), (0xff00, 0xffef), (0x10000, 0x10fff), (0x11000, 0x11fff), (0x12000, 0x12fff), (0x16000, 0x16fff), (0x1d000, 0x1d7ff), (0x1e000, 0x1efff), (0x1f000, 0x1faff), (0x20000, 0x2ffff), (0xe0000, 0xe01ff), (0xf0000, 0xf00ff)]
    for lo, hi in blocks:  # each block alone, between letters, and with digits
        pick = lambda: chr(rng.randint(lo, hi))
        for k in range(14):
            n = rng.randint(1, 16)
            s = "".join(pick() for _ in range(n))
            out.append([s, "a" + s, " " + s + " ", s + "1", "".join(c + rng.choice(["", " ", "a", "1", "\n", "'s"]) for c in s), pick() * n, "x " + pick() + "\u0301"][k % 7])
    for _ in range(400):  # anything
        out.append("".join(chr(c) for c in (rng.choice([rng.randint(0, 0x2ff), rng.randint(0, 0x3fff), rng.randint(0, 0x10ffff)]) for _ in range(rng.randint(1, 20))) if c not in SURROGATE))
    lines = [l for m in (ast, heapq, textwrap) for l in inspect.getsource(m).split("\n")]  # CPython 3.11's
    for _ in range(120):  # code
        i = rng.randrange(len(lines))
        out.append("\n".join(lines[i:i + rng.randint(1, 12)]).replace("    ", rng.choice(["\t", "    ", "  "])))
    for _ in range(60):
        out.append(json.dumps({rng.choice(words): [rng.random(), rng.randint(-5, 99999), None, rng.choice(words)] for _ in range(rng.randint(1, 6))}, indent=rng.choice([None, 2, 4])))
    seen, unique = set(), []
    for s in out:
        if s not in seen:
            seen.add(s)
            unique.append(s)
    return unique


def write(directory, name, value):
    raw = json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()
    path = os.path.join(directory, name + ".json.gz")
    with open(path, "wb") as f, gzip.GzipFile(filename="", fileobj=f, mode="wb", compresslevel=9, mtime=0) as z:
        z.write(raw)
    print(f"{path}: {os.path.getsize(path)} bytes")


def golden(tok, meta, strings, rng):
    tok.encode_special_tokens = True  # a control token in the text of a user is text
    meta["ids"] = [e.ids for e in tok.encode_batch(strings, add_special_tokens=False)]
    n = len(meta["tokens"])
    seqs = []
    for k in range(300):
        if k % 2:
            ids = [rng.randrange(n) for _ in range(rng.randint(1, 12))]
        else:  # cut and shuffled pieces of characters
            ids = [i for s in rng.sample(strings, 3) for i in tok.encode(s, add_special_tokens=False).ids[:5]]
            rng.shuffle(ids)
        if all(meta["types"][i] != 5 for i in ids):
            seqs.append([ids, tok.decode(ids, skip_special_tokens=True)])
    meta["decode"] = seqs


def compact(meta):
    """Ordinary tokens that the merges make, in order, need not be stored."""
    made = [m.replace(" ", "") for m in meta["merges"]]
    tokens = meta["tokens"]
    for start in range(len(tokens)):
        if tokens[start:start + len(made)] == made:
            meta["tokens"] = tokens[:start] + tokens[start + len(made):]
            meta["made_at"] = start
            types = meta["types"]
            assert set(types[start:start + len(made)]) == {NORMAL}
            meta["types"] = types[:start] + types[start + len(made):]
            break
    else:
        meta["made_at"] = -1
    return meta


def ranges(points):
    out = []
    for p in sorted(points):
        if out and out[-1][1] == p - 1:
            out[-1][1] = p
        else:
            out.append([p, p])
    return out


def classes():
    every = [c for c in range(0x110000) if c not in SURROGATE]
    out = {}
    for name, rx in (("letter", r"\p{L}"), ("number", r"\p{N}"), ("space", r"\s")):
        p = pre_tokenizers.Split(Regex(rx), behavior="isolated", invert=False)
        out[name] = ranges(c for c in every if len(p.pre_tokenize_str(chr(c) + "\x01")) == 2)
    p = pre_tokenizers.Digits(individual_digits=True)
    out["digit"] = ranges(c for c in every if len(p.pre_tokenize_str(chr(c) * 2)) == 2)
    return out


def chats(directory, variables):
    from transformers.utils.chat_template_utils import _compile_jinja_template
    import transformers.utils.chat_template_utils as ct
    class Fixed(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 7, 4, 9, 5, 7)
    ct.datetime = Fixed
    m = lambda *pairs: [{"role": r, "content": c} for r, c in pairs]
    conversations = [
        m(("user", "What is the capital of France?")),
        m(("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello!"), ("user", "  spaced \n")),
        m(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e")),
        m(("system", ""), ("user", "")), m(("user", "\n\n")), m(("assistant", "I begin")), m(("user", "x"), ("user", "y")),
        m(("user", "q"), ("assistant", "<think>\nhm\n</think>\n\nanswer"), ("user", "more")),
        m(("user", "q"), ("assistant", "<think>\nhm\n</think>\n\nanswer")),
        m(("system", "s"), ("user", "q"), ("assistant", "</think>a</think>b"), ("tool", "{\"t\": 21}"), ("tool", "two"), ("assistant", "fine")),
        m(("user", "<tool_response>\nx\n</tool_response>"), ("assistant", "y"), ("user", "z")),
        m(("user", "日本語 😀 \u00a0\u3000"), ("assistant", "q\u0307\u0323 {{ x }} {% raw %}")),
        m(("developer", "d"), ("user", "u")), m(("tool", "t")), m(("user", "it's \"quoted\" \\ back")),
        m(("user", "hello big-WORLD (of) éclairs <b> x_y 1st o'neil")),
        m(("system", "a"), ("system", "b"), ("user", "\0 nul \x1c sep \x1c")), m(("user", "1 < 2 > 0 | 5 <b>bold</b>")),
    ]
    out = {"conversations": conversations, "templates": {}}
    for path in sorted(glob.glob(os.path.join(directory, "templates", "*.jinja"))):
        source = open(path, encoding="utf-8", newline="").read()
        compiled = _compile_jinja_template(source)
        rows = []
        for c in conversations:
            for add in (False, True):
                try:
                    rows.append(compiled.render(messages=c, tools=None, documents=None, add_generation_prompt=add, **variables))
                except Exception as e:  # raise_exception, or a template that needs a message
                    rows.append(None)
        out["templates"][os.path.basename(path)] = rows
    return out


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--smollm", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--extra", action="append", default=[])
    a.add_argument("--extra-out")
    args = a.parse_args()
    strings = texts(random.Random(20261130))
    print(len(strings), "strings")
    write(args.out, "strings", strings)
    write(args.out, "classes", classes())
    # A piece of the byte-level alphabet has one character for each byte.
    write(args.out, "splits", {pre: [[len(piece) for piece, _ in pre_tokenizer(pre).pre_tokenize_str(s)] for s in strings] for pre in ("smollm", "llama-bpe", "qwen2")})

    corpus = [s for s in strings if len(s) > 20]
    small = {
        "llama3-small": train("llama-bpe", corpus, ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], [], 1500),
        "qwen-small": train("qwen2", corpus, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<think>", "</think>", "<tool_call>", "</tool_call>"], 1500),
    }
    smol, ids, template = from_gguf(args.smollm)
    os.makedirs(os.path.join(args.out, "templates"), exist_ok=True)
    with open(os.path.join(args.out, "templates", "smollm2.jinja"), "w", encoding="utf-8", newline="") as f:
        f.write(template)
    small["smollm2"] = smol
    toks = {}
    for name, meta in small.items():
        toks[name] = hugging_face(meta)
        golden(toks[name], meta, strings, random.Random(name))
        write(args.out, name, compact(meta))
    rendered = chats(args.out, {"bos_token": "<|begin_of_text|>", "eos_token": "<|im_end|>"})
    rendered["ids"] = {}
    for name, template in (("smollm2", "smollm2.jinja"), ("qwen-small", "qwen3.jinja"), ("llama3-small", "llama3-style.jinja")):
        toks[name].encode_special_tokens = False  # apply_chat_template: control tokens count
        rendered["ids"][name] = {template: [text and toks[name].encode(text, add_special_tokens=False).ids for text in rendered["templates"][template]]}
    write(args.out, "chats", rendered)
    for e in args.extra:
        name, rest = e.split("=", 1)
        path, pre = rest.rsplit(":", 1)
        tok, meta = from_json(path, pre)
        golden(tok, meta, strings, random.Random(name))
        write(args.extra_out, name, compact(meta))


if __name__ == "__main__":
    main()
