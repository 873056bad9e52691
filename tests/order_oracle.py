"""The independent oracle of docs/ORDER.md: a second implementation, written from that text alone.

It materializes everything (epoch sequence, lanes, every entry) and is slow by design. Usage:

    python3 tests/order_oracle.py < cases.jsonl    # one JSON case per line, one answer per line
    python3 tests/order_oracle.py --selftest       # the test vectors of section 1

A case has the inputs of ORDER.md as keys: counts, seed, epoch, shuffle, window, interleave,
block_length, tail, limit (or null), segments ([[C, B, steps], ...]), world_size; the mode is
deterministic. An answer has steps (S of the last segment), first_step (steps of the epoch before
that segment), rank_steps, batches[step][rank] = [[shard, ordinal, valid], ...] and dropped (samples
that no step of any segment delivers), or only error. Section numbers are those of ORDER.md.
"""
import hashlib
import json
import sys

MASK32, MASK64 = 2**32 - 1, 2**64 - 1

# Section 1: random numbers.
def make_key(label, *parts):
    text = b"shardfeed order 1\0" + label.encode("ascii") + b"\0"
    for part in parts:
        text += part if isinstance(part, bytes) else part.to_bytes(8, "little")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")

def philox(key, counter):
    """Philox4x32-10: key (k0, k1), counter (c0, c1, c2, c3), all 32-bit words."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        product0, product1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1 = (product1 >> 32) ^ c1 ^ k0, product1 & MASK32
        c2, c3 = (product0 >> 32) ^ c3 ^ k1, product0 & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3

def draws(key, stream):
    """draw(key, stream, 0), draw(key, stream, 1), ..."""
    for block in range(2**64):
        counter = (block & MASK32, block >> 32, stream & MASK32, stream >> 32)
        x0, x1, x2, x3 = philox((key & MASK32, key >> 32), counter)
        yield x0 + (x1 << 32)
        yield x2 + (x3 << 32)

def below(n, source):
    while True:
        product = next(source) * n
        if product & MASK64 >= 2**64 % n:
            return product >> 64

def permutation(n, key, stream):
    a, source = list(range(n)), draws(key, stream)
    for i in range(n - 1, 0, -1):
        j = below(i + 1, source)
        a[i], a[j] = a[j], a[i]
    return a

def permuted(x, key, stream):
    return [x[p] for p in permutation(len(x), key, stream)]

# Input: the order digest.
def order_digest(counts):
    text = b"".join(count.to_bytes(8, "little") for count in counts)
    return hashlib.sha256(b"shardfeed counts 1\0" + text).digest()

# Sections 2 to 4: the epoch sequence, the lanes, the order inside a lane. An item of the sequence
# is (stretch, shard, ordinal), with the stretches counted from 0.
def make_line(case, digest):
    shards, seed, epoch = list(range(len(case["counts"]))), case["seed"], case["epoch"]
    if case["shuffle"]:
        shards = permuted(shards, make_key("line", digest, seed, epoch), 0)
    unrotated = [(shard, ordinal) for shard in shards for ordinal in range(case["counts"][shard])]
    N, R = len(unrotated), 0
    if case["shuffle"]:
        R = below(N, draws(make_key("rotate", digest, seed, epoch), 0))
    line, stretch = [], -1
    for p in range(N):
        shard, ordinal = unrotated[(p + R) % N]
        stretch += p == 0 or ordinal == 0  # a stretch begins the sequence or a shard
        line.append((stretch, shard, ordinal))
    return line

def cut(items, C):
    n = len(items)
    starts = [l * (n // C) + min(l, n % C) for l in range(C + 1)]
    return [items[starts[l]:starts[l + 1]] for l in range(C)]

def interleaved(case, lane):
    k, m = case["interleave"], case["block_length"]
    by_stretch, result = {}, []  # a dict keeps the order of the epoch sequence
    for item in lane:
        by_stretch.setdefault(item[0], []).append(item)
    splits = list(by_stretch.values())
    alone = []
    if case["shuffle"] and splits and splits[-1][-1][2] < case["counts"][splits[-1][-1][1]] - 1:
        alone = [splits.pop()]
    groups = [splits[start:start + k] for start in range(0, len(splits), k)]
    for group in [*groups, alone]:
        while any(group):
            result += [sample for split in group for sample in split[:m]]
            group = [split[m:] for split in group]
    return result

def shuffled(u, w, key_a, key_b):
    n, h = len(u), w // 2
    if w >= n:
        return permuted(u, key_a, 0)
    blocks = [u[p:p + w] for p in range(0, n, w)]
    u = [sample for j, block in enumerate(blocks) for sample in permuted(block, key_a, j)]
    blocks = [u[:h]] + [u[p:p + w] for p in range(h, n, w)]
    return [sample for j, block in enumerate(blocks) for sample in permuted(block, key_b, j)]

def first_lanes(case, line, digest, C):
    lanes = [interleaved(case, lane) for lane in cut(line, C)]
    if case["shuffle"]:
        for l in range(C):
            a, b = (make_key(label, digest, case["seed"], case["epoch"], C, l)
                    for label in ("window a", "window b"))
            lanes[l] = shuffled(lanes[l], case["window"], a, b)
    return lanes

# Sections 5 to 7: steps, segments, the end of an epoch.
def slots(lanes, B, g, first_index, limit):
    """Returns step g of a segment as a list of B entries: a sample, or None where none exists."""
    b, result = B // len(lanes), []
    for e in range(B):
        l, position = e // b, g * b + e % b
        exists = position < len(lanes[l]) and (limit is None or first_index + g * B + e < limit)
        result.append(lanes[l][position] if exists else None)
    return result

def segment_steps(lanes, B, tail, first_index, limit):
    b, lengths = B // len(lanes), [len(lane) for lane in lanes]
    M = B * max(lengths) if limit is None else max(limit - first_index, 0)  # the former: no bound
    if tail == "drop":
        return min(min(lengths) // b, M // B)
    return min(-(-max(lengths) // b), -(-M // B))

def rest_of_lane(lane, l, b, B, numbers):
    """Returns the rest of lane l after rank r consumed numbers[r] steps: by rank, then by
    position."""
    share = B // len(numbers)
    return [lane[p] for r, number in enumerate(numbers) for p in range(number * b, len(lane))
            if (l * b + p % b) // share == r]

def require(condition, message):
    if not condition:
        raise ValueError(message)

def check(case):
    require(0 <= case["seed"] <= MASK64 and 0 <= case["epoch"] < 2**48, "seed or epoch")
    for name in ("window", "interleave", "block_length", "limit", "world_size"):
        require(case[name] is None and name == "limit" or case[name] >= 1, name)
    require(case["tail"] in ("drop", "pad", "uneven"), "tail")
    require(1 <= len(case["segments"]) <= 16, "number of segments")
    require(all(C >= 1 and B >= 1 and B % C == 0 for C, B, _ in case["segments"]), "C and B")
    require(case["segments"][-1][1] % case["world_size"] == 0, "world_size must divide B")

def epoch_plan(case):
    """Returns the answer of a case. Raises ValueError if the case is invalid."""
    check(case)
    require(case["counts"] and min(case["counts"]) >= 0, "counts")
    require(1 <= sum(case["counts"]) < 2**63, "sum of counts")
    digest = order_digest(case["counts"])
    line = make_line(case, digest)
    return deliver(case, line, first_lanes(case, line, digest, case["segments"][0][0]))

def deliver(case, line, lanes, ordered=lambda s, lanes: lanes):
    """Returns the answer for an epoch sequence and the lanes of the first segment. Segment s begins
    with its lanes as ordered(s, lanes) returns them."""
    segments, tail, limit, W = (case[k] for k in ("segments", "tail", "limit", "world_size"))
    first_step = first_index = delivered = 0
    lanes = ordered(0, lanes)
    for s, ((C, B, steps), (next_C, _, _)) in enumerate(zip(segments, segments[1:])):
        require(tail == "uneven" or not isinstance(steps, list), "steps by rank without uneven")
        numbers = steps if isinstance(steps, list) else [steps]
        require(numbers and B % len(numbers) == 0, "the world of a segment must divide its B")
        most = segment_steps(lanes, B, tail, first_index, limit)
        require(min(numbers) >= 0 and 1 <= max(numbers) <= most, "steps of an earlier segment")
        for g in range(max(numbers)):
            for e, sample in enumerate(slots(lanes, B, g, first_index, limit)):
                delivered += sample is not None and g < numbers[e * len(numbers) // B]
        together = len(set(numbers)) == 1
        if together:
            rests = [lane[min(len(lane), numbers[0] * (B // C)):] for lane in lanes]
        else:
            rests = [rest_of_lane(lanes[l], l, B // C, B, numbers) for l in range(C)]
        lanes = rests if together and next_C == C else cut(sum(rests, []), next_C)
        lanes = ordered(s + 1, lanes)
        first_step, first_index = first_step + max(numbers), first_index + max(numbers) * B

    B, padded, batches = segments[-1][1], 0, []
    S = segment_steps(lanes, B, tail, first_index, limit)
    for g in range(S):
        batch = [[] for rank in range(W)]
        for e, sample in enumerate(slots(lanes, B, g, first_index, limit)):
            if sample is not None:
                batch[e * W // B].append([*sample[1:], True])
                delivered += 1
            elif tail == "pad":
                batch[e * W // B].append([*line[padded % len(line)][1:], False])
                padded += 1
        batches.append(batch)
    rank_steps = [sum(len(batch[r]) > 0 for batch in batches) for r in range(W)]
    return {"steps": S, "first_step": first_step, "rank_steps": rank_steps,
            "batches": batches, "dropped": len(line) - delivered}

def selftest():
    zero, words = philox((0, 0), (0, 0, 0, 0)), "%08x %08x %08x %08x"
    assert words % zero == "6627e8d5 e169c58d bc57ac4c 9b00dbd8"
    pi = philox((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344))
    assert words % pi == "d16cfe09 94fdcceb 5001e420 24126ea1"
    key = make_key("line", bytes(32), 1, 2)
    assert key == 0x4963437A85D8B4CF and permutation(8, key, 5) == [2, 3, 0, 6, 7, 5, 4, 1]
    source, n = draws(key, 5), 2**63 + 1
    bounded = [below(n, source) for _ in range(3)]
    assert bounded == [6062758674428070142, 2695872768646764860, 955156200320888297]
    assert next(source) == list(zip(range(9), draws(key, 5)))[8][1]  # draws 1, 4 and 7 were used
    case = {"counts": [3, 0, 5], "seed": 1, "epoch": 2, "shuffle": True}
    digest = order_digest(case["counts"])
    assert digest.hex() == "0335e68b10b1d62345687b3c687f0e37492444b8e6f847b663237dab0f085b23"
    expected = "0.1 0.2 2.0 2.1 2.2 2.3 2.4 0.0", [0, 0, 1, 1, 1, 1, 1, 2]
    line = make_line(case, digest)
    assert (" ".join(f"{s}.{o}" for _, s, o in line), [t for t, _, _ in line]) == expected
    print("selftest ok")

def answer(case):
    try:
        return epoch_plan(case)
    except ValueError as error:
        return {"error": str(error)}

if __name__ == "__main__" and sys.argv[1:] == ["--selftest"]:
    selftest()
elif __name__ == "__main__":
    for text in sys.stdin:
        print(json.dumps(answer(json.loads(text))))
