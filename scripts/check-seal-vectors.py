#!/usr/bin/env python3
"""Checks transfer/seal/testdata/vectors.json with another implementation.

Needs the package `cryptography`. From the package comment of transfer/seal and
the RFCs alone, it recomputes what is deterministic (frames, chain, first token,
credit, manifest, receipt, stream) and opens what was sealed with HPKE, whose key
schedule is written out here. Prints one line, or fails.
"""
import hashlib
import hmac
import json
import pathlib
import struct

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
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


# HPKE: X-Wing (MLKEM768-X25519), then the key schedule of RFC 9180, base mode.
def labeled_extract(suite, salt, label, ikm):
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + ikm, "sha256")


def labeled_expand(suite, prk, label, info, size):
    info, out, block = struct.pack(">H", size) + b"HPKE-v1" + suite + label + info, b"", b""
    while len(out) < size:
        block = hmac.digest(prk, block + info + bytes([len(out) // 32 + 1]), "sha256")
        out += block
    return out[:size]


def decapsulate(seed, enc):
    wide = hashlib.shake_256(seed).digest(96)
    x = X25519PrivateKey.from_private_bytes(wide[64:])
    pk = x.public_key().public_bytes_raw()
    m = MLKEM768PrivateKey.from_seed_bytes(wide[:64])
    assert sha(m.public_key().public_bytes_raw() + pk).hex() == v["hpke"]["public_key_sha256"]
    shared = m.decapsulate(enc[:1088]) + x.exchange(X25519PublicKey.from_public_bytes(enc[1088:]))
    return hashlib.sha3_256(shared + enc[1088:] + pk + b"\\.//^\\").digest()


def schedule(aead_id, secret, info):
    suite = b"HPKE" + struct.pack(">HHH", 0x647A, 1, aead_id)
    ctx = b"\0" + labeled_extract(suite, b"", b"psk_id_hash", b"") + labeled_extract(suite, b"", b"info_hash", info)
    prk = labeled_extract(suite, secret, b"secret", b"")
    return suite, lambda label, size: labeled_expand(suite, prk, label, ctx, size)


p = v["hpke"]
seed, token = h(p["private_key"]), h(p["token_hash"])
suite, derive = schedule(0xFFFF, decapsulate(seed, h(p["enc"])), b"bulkhead kv/1" + token)
exporter = derive(b"exp", 32)


def export(context):
    return labeled_expand(suite, exporter, b"sec", context, 32)


frame = h(p["frame"])
assert AESGCM(export(b"frame key")).decrypt(nonce(0), frame[264:], frame[:264]).hex() == p["payload"]
first = AESGCM(export(b"first token key")).decrypt(bytes(12), h(p["first_token_sealed"]), b"bulkhead first/1" + token)
assert first.hex() == p["first_token"]
mac = hmac.digest(export(b"credit key"), b"bulkhead credit/1" + token + struct.pack(">Q", p["credit_limit"]), "sha256")
assert mac.hex() == p["credit_mac"]
box = h(p["box"])
_, derive = schedule(2, decapsulate(seed, box[:1120]), b"bulkhead box/1|" + p["box_info"].encode())
plain = AESGCM(derive(b"key", 32)).decrypt(derive(b"base_nonce", 12), box[1120:], h(p["box_aad"]))
assert plain.hex() == p["box_plaintext"]

print(f"ok: {len(f['headers'])} frames, first token, credit, manifest, receipt, stream, HPKE")
