"""The independent oracle of docs/ORDER.md, section 14 (packs): written from that text alone.

    python3 tests/pack_oracle.py < cases.jsonl    # one JSON case per line, one answer per line
    python3 tests/pack_oracle.py --selftest       # the check vectors of section 14

A case has the settings of section 14 as keys (length, block, variants, append, long, method), and
shard (the digest, 64 hex digits) and lengths. An answer has variants[v][i] = [[sequence, first,
tokens], ...], empty and dropped (sequences) and lost (tokens that are in no pack), or only error.
"""
import json
import sys

from order_oracle import cut, make_key, permutation, permuted, require

def tokens_of(case, length):
    """Returns (all, remaining) tokens of a sequence."""
    n = length + 1 if case["append"] and length > 0 else length
    if n <= case["length"] or case["long"] == "split":
        return n, n
    require(case["long"] != "error", "a long sequence")
    return n, case["length"] if case["long"] == "truncate" else 0

def parts_of(case):
    parts = []
    for s, length in enumerate(case["lengths"]):
        _, t = tokens_of(case, length)
        size = case["length"] if case["method"] == "fit" else max(t, 1)
        parts += [(s, first, min(size, t - first)) for first in range(0, t, size)]
    return parts

def best_fit(L, parts):
    packs, rooms = [], []
    for part in parts:
        fitting = [(room, pack) for pack, room in enumerate(rooms) if room >= part[2]]
        if fitting:
            _, pack = min(fitting)
        else:
            pack = len(packs)
            packs.append([])
            rooms.append(L)
        packs[pack].append(part)
        rooms[pack] -= part[2]
    return packs

def fit(case, blocks, keys):
    variants = [[] for _ in range(case["variants"])]
    for j, block in enumerate(blocks):
        packings = []
        for v in range(case["variants"]):
            by_class = sorted(permuted(block, keys[v][j], 0), key=lambda p: -p[2].bit_length())
            packings.append(best_fit(case["length"], by_class))
        p_j = max(map(len, packings))
        for v, packs in enumerate(packings):
            while len(packs) < p_j:
                sizes = [len(pack) for pack in packs]
                most = sizes.index(max(sizes))
                half = (sizes[most] + 1) // 2
                packs[most], rest = packs[most][:half], packs[most][half:]
                packs.append(rest)
            variants[v] += [sorted(packs[p]) for p in permutation(p_j, keys[v][j], 1)]
    return variants

def concat(case, blocks, keys):
    L, variants = case["length"], []
    for v in range(case["variants"]):
        tokens = [(s, first + i) for j, block in enumerate(blocks)
                  for s, first, t in permuted(block, keys[v][j], 0) for i in range(t)]
        variants.append([])
        for at in range(0, len(tokens), L):
            pack = []
            for s, token in tokens[at:at + L]:
                if pack and pack[-1][0] == s:
                    pack[-1][2] += 1
                else:
                    pack.append([s, token, 1])
            variants[-1].append(pack)
    return variants

def packed(case):
    for name, most in (("length", 2**30), ("block", 2**20), ("variants", 64)):
        require(1 <= case[name] <= most, name)
    counts = [tokens_of(case, length) for length in case["lengths"]]
    parts = parts_of(case)
    blocks = cut(parts, -(-len(parts) // case["block"])) if parts else []
    digest = bytes.fromhex(case["shard"])
    keys = [[make_key("pack", digest, j, v) for j in range(len(blocks))]
            for v in range(case["variants"])]
    return {
        "variants": (fit if case["method"] == "fit" else concat)(case, blocks, keys),
        "empty": sum(n == 0 for n, _ in counts),
        "dropped": sum(n > 0 and t == 0 for n, t in counts),
        "lost": sum(n - t for n, t in counts),
    }

def answer(case):
    try:
        return packed(case)
    except ValueError as error:
        return {"error": str(error)}

def selftest():
    case = {"shard": "00" * 32, "lengths": [5, 3, 0, 9, 2, 2, 7, 1, 4, 6, 3, 12], "length": 8,
            "block": 8, "variants": 2, "append": True, "long": "split", "method": "fit"}
    shown = lambda packs: " | ".join(
        " ".join(f"({s}, {first}, {t})" for s, first, t in pack) for pack in packs)
    assert shown(packed(case)["variants"][1]) == (
        "(4, 0, 3) | (0, 0, 6) (3, 8, 2) | (6, 0, 8) | (3, 0, 8) | (1, 0, 4) (5, 0, 3) | (9, 0, 7) | "
        "(11, 8, 5) | (11, 0, 8) | (7, 0, 2) (8, 0, 5) | (10, 0, 4)")
    assert shown(packed({**case, "method": "concat"})["variants"][1]) == (
        "(3, 0, 8) | (3, 8, 2) (1, 0, 4) (5, 0, 2) | (5, 2, 1) (4, 0, 3) (6, 0, 4) | "
        "(6, 4, 4) (0, 0, 4) | (0, 4, 2) (7, 0, 2) (9, 0, 4) | (9, 4, 3) (11, 0, 5) | (11, 5, 8) | "
        "(8, 0, 5) (10, 0, 3) | (10, 3, 1)")
    split = {**case, "lengths": [1, 4, 3, 4, 3, 3, 2, 4], "block": 64, "append": False}
    assert [shown(variant) for variant in packed(split)["variants"]] == [
        "(1, 0, 4) (3, 0, 4) | (2, 0, 3) | (0, 0, 1) (6, 0, 2) (7, 0, 4) | (4, 0, 3) (5, 0, 3)",
        "(0, 0, 1) | (2, 0, 3) (7, 0, 4) | (1, 0, 4) (3, 0, 4) | (4, 0, 3) (5, 0, 3) (6, 0, 2)"]
    dropping = {**case, "lengths": [3, 8, 0, 5, 7, 2], "long": "drop"}
    counts = packed(dropping)
    assert (counts["empty"], counts["dropped"], counts["lost"]) == (1, 1, 9)
    print("selftest ok")

if __name__ == "__main__" and sys.argv[1:] == ["--selftest"]:
    selftest()
elif __name__ == "__main__":
    for text in sys.stdin:
        print(json.dumps(answer(json.loads(text))))
