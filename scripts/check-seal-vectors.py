#!/usr/bin/env python3
"""Checks transfer/seal/testdata/vectors.json with another implementation.

Needs the package `cryptography`. It recomputes what is deterministic from the
package comment of transfer/seal alone: frames, chain, first token, credit,
manifest, receipt and stream. Prints one line, or fails.
"""
import hashlib
import hmac
import json
import pathlib
import struct

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

root = pathlib.Path(__file__).resolve().parent.parent
v = json.loads((root / "transfer/seal/testdata/vectors.json").read_text())
f = v["fixed"]
h = bytes.fromhex


def sha(b):
    return hashlib.sha256(b).digest()


def nonce(n):
    return bytes(4) + struct.pack(">Q", n)


token, aead = h(f["token_hash"]), AESGCM(h(f["frame_key"]))
links = b""
for i, header in enumerate(map(h, f["headers"])):
    assert len(header) == 264 and header[:5] == b"BKHF\x01" and header[8:40] == token
    (seq,) = struct.unpack_from(">I", header, 60)
    (size,) = struct.unpack_from(">I", header, 196)
    assert seq == i
    payload = bytes((7 * i + j) % 256 for j in range(256)) * (size // 256 + 1)
    frame = header + aead.encrypt(nonce(seq), payload[:size], header)
    assert sha(frame).hex() == f["frames_sha256"][i]
    links += sha(header + frame[-16:])
chain = sha(b"bulkhead chain/1" + links)
assert chain.hex() == f["chain"]

frame = h(f["last_frame"])
aead.decrypt(nonce(9), frame[264:], frame[:264])

first = AESGCM(h(f["first_token_key"])).encrypt(bytes(12), h(f["first_token"]), b"bulkhead first/1" + token)
assert first.hex() == f["first_token_sealed"]
mac = hmac.digest(h(f["credit_key"]), b"bulkhead credit/1" + token + struct.pack(">Q", f["credit_limit"]), "sha256")
assert mac.hex() == f["credit_mac"]

tokens = f["plan"][0]
manifest = b"BKHM\x01\x01\0\0" + token + struct.pack(">IIII", -(-tokens // 64), tokens, len(f["headers"]), 64)
manifest += chain + struct.pack(">I", len(first)) + first
assert manifest.hex() == f["manifest"]
receipt = b"BKHR\x01\0\0\0" + token + sha(manifest) + b"d-0".ljust(32, b"\0") + struct.pack(">QI", 42, 2)
assert receipt.hex() == f["receipt"] and sha(receipt).hex() == f["receipt_hash"]

s = v["stream"]
role, seq = s["role"].encode(), s["seq"]
key = HKDF(hashes.SHA256(), 32, h(s["token_hash"]), b"bulkhead output/1|" + role).derive(h(s["reply_key"]))
sealed = AESGCM(key).encrypt(nonce(seq), h(s["plaintext"]), h(s["token_hash"]) + role + struct.pack(">Q", seq))
assert sealed.hex() == s["sealed"]
print(f"ok: {len(f['headers'])} frames, first token, credit, manifest, receipt, stream")
