#!/usr/bin/env python3
"""Reads a tape from what formats/TAPE.md says, with stock msgpack and lz4 and nothing of sparktape's.

Prints one line per record, "round/slot/name@rank dtype [shape] hash digest", after checking every checksum, the transforms,
the record's hash or digest and the index; "-" for a hash or a digest that is neither there nor can be made. A base is read
the same way. Exit 77 when the two modules are not there."""
import os
import struct
import sys

try:
    import lz4.frame
    import msgpack
except ImportError as e:
    print(e, file=sys.stderr)
    sys.exit(77)

SIZE = {"F32": 4, "BF16": 2, "I32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "I64": 8, "F16": 2, "F64": 8, "I16": 2,
        "BOOL": 1, "U16": 2, "U32": 4, "U64": 8, "F8_E5M2": 1}
CRC_TABLE = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
    CRC_TABLE.append(n)


def crc32c(data):
    c = 0xFFFFFFFF
    for b in data:
        c = CRC_TABLE[(c ^ b) & 255] ^ c >> 8
    return c ^ 0xFFFFFFFF


P1, P2, P3, P4, P5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
M = (1 << 64) - 1


def rotl(v, k):
    return (v << k | v >> 64 - k) & M


def mix(v, w):
    return rotl((v + w * P2) & M, 31) * P1 & M


def xxh64(data):
    n, at = len(data), 0
    h = P5
    if n >= 32:
        v = [(P1 + P2) & M, P2, 0, -P1 & M]
        while n - at >= 32:
            v = [mix(a, w) for a, w in zip(v, struct.unpack_from("<4Q", data, at))]
            at += 32
        h = (rotl(v[0], 1) + rotl(v[1], 7) + rotl(v[2], 12) + rotl(v[3], 18)) & M
        for a in v:
            h = ((h ^ mix(0, a)) * P1 + P4) & M
    h = (h + n) & M
    while n - at >= 8:
        h = (rotl(h ^ mix(0, struct.unpack_from("<Q", data, at)[0]), 27) * P1 + P4) & M
        at += 8
    if n - at >= 4:
        h = (rotl(h ^ struct.unpack_from("<I", data, at)[0] * P1 & M, 23) * P2 + P3) & M
        at += 4
    for b in data[at:]:
        h = rotl(h ^ b * P5 & M, 11) * P1 & M
    h = (h ^ h >> 33) * P2 & M
    h = (h ^ h >> 29) * P3 & M
    return h ^ h >> 32


D1, D2, D3 = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xC2B2AE3D27D4EB4F


def digest_mix(x):
    x = (x ^ x >> 32) * D2 & M
    x = (x ^ x >> 29) * D3 & M
    return x ^ x >> 32


def digest_of_row(row):
    words = struct.unpack("<%dQ" % ((len(row) + 7) // 8), row + bytes(-len(row) % 8))
    return digest_mix(sum(digest_mix(w + (i + 1) * D1 & M) for i, w in enumerate(words)) + len(row) * D1 & M)


def digest_of_rows(rows):
    return digest_mix(sum(digest_mix(d + (r + 1) * D1 & M) for r, d in enumerate(rows)) + len(rows) * D1 & M)


def n_rows(shape):
    return shape[0] if len(shape) > 1 else 1


def digest(shape, raw):
    n = n_rows(shape)
    size = len(raw) // n if n else 0
    return digest_of_rows([digest_of_row(raw[r * size:(r + 1) * size]) for r in range(n)])


def e4m3(code):
    sign, exponent, mantissa = -1.0 if code & 128 else 1.0, code >> 3 & 15, code & 7
    return sign * (mantissa * 2.0 ** -9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10))


def unplane(data, elems, size):
    return b"".join(bytes(data[b * elems + i] for b in range(size)) for i in range(elems))


def size_of(p):
    return SIZE[p["d"]] if p.get("t", 0) == 0 else 8


def key_of(p):
    return p["r"], p.get("s", -1), p.get("k", -1), p["name"]


def raw_bytes(parts, i, payload, base):
    p = parts[i]
    size, elems, how = size_of(p), p["e"], p.get("c", 0)
    data = payload[p.get("o", 0):p.get("o", 0) + p.get("b", 0)]
    if how == 0:
        return data
    if how == 1:
        return unplane(data, elems, size)
    if how == 2:
        out = b""
        for k in range(elems):
            value = e4m3(data[k]) * 2.0 ** (data[elems + k // 32] - 127)
            out += struct.pack("<f", value)[2:]
        return out
    if how == 3:
        return raw_bytes(parts, p["u"], payload, base)
    if how == 4:
        return bytes(a ^ b for a, b in zip(unplane(data, elems, size), raw_bytes(parts, p["u"], payload, base)))
    if how == 6:
        other, value = base[key_of(p)]
        assert (other["d"], other["h"], other["x"]) == (p["d"], p["h"], p.get("y", p["x"])) and other.get("t", 0) == 0
        value = value[size * p.get("f", 0):size * (p.get("f", 0) + elems)]
        return bytes(a ^ b for a, b in zip(unplane(data, elems, size), value)) if data else value
    assert how == 5, how
    out, plane = bytearray(elems * size), elems // 8
    for b in range(size):
        for bit in range(8):
            bits = data[(8 * b + bit) * plane:(8 * b + bit + 1) * plane]
            for k in range(elems):
                out[k * size + b] |= (bits[k // 8] >> k % 8 & 1) << bit
    return bytes(out)


def product(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def chunks(data):
    at, sequence = 16, 0
    while data[at:at + 4] == b"SPKC":
        head = data[at:at + 32]
        kind, flags, zero, n_meta, n_body, number, meta_crc, body_crc, crc = struct.unpack("<BBHIIIIII", head[4:])
        assert crc == crc32c(head[:28]) and flags == 0 and zero == 0 and number == sequence
        assert 32 + n_meta + n_body <= 1 << 20
        meta, body = data[at + 32:at + 32 + n_meta], data[at + 32 + n_meta:at + 32 + n_meta + n_body]
        assert crc32c(meta) == meta_crc and crc32c(body) == body_crc
        yield at, chr(kind), msgpack.unpackb(meta, strict_map_key=True), body
        at += 32 + n_meta + n_body
        sequence += 1
    assert data[at:at + 8] == b"SPKTEND\n" and len(data) == at + 16


def columns(meta, body):
    code = {"u64": "Q", "f64": "d", "u32": "I", "i32": "i", "u8": "B"}
    return {name: struct.unpack_from("<%d%s" % (meta["rows"], code[kind]), body, offset)
            for name, kind, offset in meta["columns"]}


def read_base(path, head):
    """The records of the base that a tape's head names: part and value by key; none when it stands alone."""
    if "base" not in head:
        return {}
    folder, note = os.path.dirname(path), head["base"]
    there = os.path.join(folder, note["name"])
    if not os.path.exists(there):
        there = os.path.join(folder, os.path.basename(note["name"]))
    data = open(there, "rb").read()
    assert (len(data), crc32c(data[struct.unpack("<Q", data[-8:])[0]:])) == (note["bytes"], note["crc"])
    records, base_head = read(there)
    assert "base" not in base_head
    return records


def read(path, show=lambda line: None):
    """Checks a tape; show is given a line per record. Records by key, and the head."""
    data = open(path, "rb").read()
    assert data[:8] == b"SPKTAPE\n"
    major, minor, crc = struct.unpack("<HHI", data[8:16])
    assert major == 1 and crc == crc32c(data[:12])
    values, facts, rows, n_events, n_data, end, pages = {}, {}, [], 0, 0, None, []
    for at, kind, meta, body in chunks(data):
        if kind == "H":
            head = meta
            base = read_base(path, head)
        elif kind == "D":
            n_data += 1
            payload = lz4.frame.decompress(body) if body else b""
            n_events += len(meta["events"])
            for p in meta["parts"]:
                p["e"] = p.get("e", product(p["h"]) if p.get("t", 0) == 0 else p.get("G", 0))
                p["name"] = meta["names"][p["n"]]
            for i, p in enumerate(meta["parts"]):
                facts.setdefault(p["i"], (p, at, i))
                assert len(values.setdefault(p["i"], b"")) == p.get("f", 0) * size_of(p)
                values[p["i"]] += raw_bytes(meta["parts"], i, payload, base)
        elif kind == "I":
            pages.append(at)
            c = columns(meta, body)
            assert meta["first"] == len(rows)
            for r in range(meta["rows"]):
                row = {k: v[r] for k, v in c.items()}
                row["name"], (row["dtype"], row["shape"]) = meta["names"][row["name"]], meta["types"][row["type"]]
                rows.append(row)
        elif kind == "E":
            end, end_at = meta, at
    assert end and struct.unpack("<Q", data[-8:])[0] == end_at and end["head"] == head
    assert end["index"] == pages and end["chunks"] == n_data and end["events"] == n_events
    assert end["records"] == len(values) == len(rows)
    for row in rows:
        p, at, i = facts[row["record"]]
        assert (row["chunk"], row["part"]) == (at, i)
        assert (row["round"], row["slot"], row["rank"]) == (p["r"], p.get("s", -1), p.get("k", -1))
        assert (row["name"], row["dtype"], row["shape"]) == (p["name"], p["d"], p["h"])
        assert (row["hash"], row.get("digest", 0)) == (p.get("x", 0), p.get("g", 0))
        assert row.get("digests", 0) == ("g" in p) + ("G" in p) and (("g" in p) != ("x" in p))
        assert (row["place"], row["axis"], row["tier"], row["ranks"]) == (
            p.get("p", 0), p.get("a", 0), p.get("t", 0), p.get("w", 1))
        if "m" in p:
            assert [row[k] for k in ("min", "max", "rms", "nan", "inf", "zero", "denormal")] == p["m"]
        value, got = values[row["record"]], p.get("g")
        if row["tier"] == 0:
            assert len(value) == product(p["h"]) * SIZE[p["d"]]
            assert xxh64(value) == p["x"], row
            got = digest(p["h"], value)
        if "G" in p:
            assert p["G"] == n_rows(p["h"]) and len(value) == 8 * p["G"]
            assert digest_of_rows(struct.unpack("<%dQ" % p["G"], value)) == p["g"], row
        text = ["-" if v is None else "%016x" % v for v in (p.get("x"), got)]
        show("%d/%s/%s@%s %s [%s] %s %s" % (row["round"], row["slot"] if row["slot"] >= 0 else "-", row["name"],
                                            row["rank"], row["dtype"], ", ".join(map(str, row["shape"])), *text))
    return {key_of(p): (p, values[i]) for i, (p, _, _) in facts.items()}, head


if __name__ == "__main__":
    read(sys.argv[1], print)
