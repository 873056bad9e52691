"""The independent oracle of docs/ORDER.md, section 13 (mixtures): written from that text alone.

It materializes everything, like order_oracle.py, from which it takes sections 1, 2 and 4 to 7.

    python3 tests/mixture_oracle.py < cases.jsonl    # one JSON case per line, one answer per line
    python3 tests/mixture_oracle.py --selftest       # the check vector of section 13

A case has the keys of order_oracle.py, but for counts: stages, a list of {"first_epoch": e, "length":
N or "first_exhausted" or "all_exhausted", "sources": [[name, weight, counts], ...]}. An answer has
batches[step][rank] = [[source, source epoch, shard, ordinal, valid], ...], and of each stage counts
(m_s), cut (samples of the replaced versions that are dropped) and digest (of the stages up to it);
operator_keys are the numbers of the epoch's sources in section 11. An invalid case has only error.
"""
import hashlib
import json
import re
import sys

from order_oracle import check, deliver, interleaved, make_key, make_line, order_digest, permuted
from order_oracle import require, shuffled

WEIGHT = re.compile(r"([0-9]*)\.?([0-9]*)(?:[eE]([+-]?[0-9]+))?")

def sha256(*parts):
    return hashlib.sha256(b"".join(parts)).digest()

# Stages.
def decimal(text):
    """A weight as (integer, exponent of ten)."""
    match = WEIGHT.fullmatch(text)
    require(match and match[1] + match[2] and len(text) <= 40 and text.count(".") < 2, "weight")
    digits, exponent = int(match[1] + match[2]), int(match[3] or 0) - len(match[2])
    require(digits > 0, "weight")
    while digits % 10 == 0:
        digits, exponent = digits // 10, exponent + 1
    return digits, exponent

def integer_weights(texts):
    decimals = [decimal(text) for text in texts]
    least = min(exponent for _, exponent in decimals)
    require(max(exponent for _, exponent in decimals) - least < 200, "sum of weights")
    weights = [digits * 10 ** (exponent - least) for digits, exponent in decimals]
    require(sum(weights) < 2**126, "sum of weights")
    return weights

def largest_remainders(length, weights):
    T, sources = sum(weights), range(len(weights))
    m = [length * w // T for w in weights]
    by_remainder = sorted(sources, key=lambda s: (-(length * weights[s] % T), s))
    for s in by_remainder[:length - sum(m)]:
        m[s] += 1
    return m

def stage_counts(length, weights, samples):
    T, sources = sum(weights), range(len(weights))
    if isinstance(length, int):
        require(1 <= length < 2**63, "length")
        m = largest_remainders(length, weights)
        if min(m) == 0:
            lengths = range(length, T // min(weights) + 1)
            last = max(each for each in lengths if min(largest_remainders(each, weights)) == 0)
            require(False, f"use at least {last + 1}")
        return m
    t = 0
    for s in sources:  # n_s / w_s against n_t / w_t
        ours, best = samples[s] * weights[t], samples[t] * weights[s]
        if ours < best if length == "first_exhausted" else ours > best:
            t = s
    m = [max(1, (2 * samples[t] * w + weights[t]) // (2 * weights[t])) for w in weights]
    require(sum(m) < 2**63, "length")
    return m

def check_name(name):
    require(1 <= len(name.encode()) <= 128 and name != "-", "name")
    for c in name:
        require(not c.isspace() and not (ord(c) < 32 or 127 <= ord(c) < 160), "name")

def make_stages(case):
    """Each stage as a dict: first_epoch, sources, and of each source name, counts, n, m and digest."""
    require(1 <= len(case["stages"]) <= 64, "number of stages")
    stages, before = [], -1
    for given in case["stages"]:
        first = given["first_epoch"]
        require(before < first < 2**48 and (before >= 0 or first == 0), "first_epoch")
        before, sources = first, sorted(given["sources"], key=lambda source: source[0].encode())
        names, weights, counts = ([source[k] for source in sources] for k in range(3))
        require(1 <= len(names) <= 1024 and len(set(names)) == len(names), "sources")
        for name in names:
            check_name(name)
        n = [sum(c) for c in counts]
        require(min(n) >= 1, "a source without samples")
        m = stage_counts(given["length"], integer_weights(weights), n)
        columns = zip(names, counts, n, m, map(order_digest, counts))
        keys = ("name", "counts", "n", "m", "digest")
        stages.append({"first_epoch": first, "sources": [dict(zip(keys, row)) for row in columns]})
    return stages

def stages_digest(stages):
    lines = ["shardfeed stages"]
    for stage in stages:
        lines.append(f"stage={stage['first_epoch']}")
        lines += [f"source={s['name']} order_digest={s['digest'].hex()} samples={s['n']} "
                  f"count={s['m']}" + (f" record_spec={s['record_spec']}" if "record_spec" in s else "")
                  for s in stage["sources"]]
    return sha256("".join(line + "\n" for line in lines).encode()).hex()[:16]

# The sequence of a source. A position of it is (E, D): the first source epoch of its version, and
# the samples that were taken of the version.
def positions(stages):
    """For each stage a list of (E, D, dropped) of its sources at its start."""
    known, result = {}, []
    for k, stage in enumerate(stages):
        result.append([])
        for source in stage["sources"]:
            E = D = cut = 0
            if source["name"] in known:
                last, E, D = known[source["name"]]
                if last["digest"] != source["digest"]:
                    begun = -(-D // last["n"])
                    E, D, cut = E + begun, 0, begun * last["n"] - D
            result[-1].append((E, D, cut))
            epochs = stages[k + 1]["first_epoch"] - stage["first_epoch"] if stages[k + 1:] else 0
            known[source["name"]] = source, E, D + epochs * source["m"]
    return result

def source_digest(source):
    return sha256(b"shardfeed source 1\0", sha256(source["name"].encode()), source["digest"])

def make_portions(case, source, E, D):
    """The range [D, D + m) of a source as a list of (source epoch, its samples there)."""
    portions, d, end = [], D, D + source["m"]
    while d < end:
        i, x = E + d // source["n"], d % source["n"]
        require(i < 2**64, "source epoch")
        y = min(source["n"], x + end - d)
        here = {**case, "counts": source["counts"], "epoch": i}
        portions.append((i, make_line(here, source_digest(source))[x:y]))
        d += y - x
    return portions

# Lanes of a mixture.
def order_of_part(case, source, share, i, part, C, l):
    here = {**case, "counts": source["counts"], "interleave": share(case["interleave"])}
    order = interleaved(here, part)
    if case["shuffle"]:
        numbers = (case["seed"], i, case["epoch"], C, l)
        a, b = (make_key(label, source_digest(source), *numbers)
                for label in ("mixture a", "mixture b"))
        order = shuffled(order, share(case["window"]), a, b)
    return order

def merged(case, queues, C, l):
    times = [(number, len(queue)) for number, queue in enumerate(queues)]
    # (2 i + 1) / (2 c) as an integer: multiplied by twice the product of all lengths.
    product = 1
    for queue in queues:
        product *= max(1, len(queue))
    labels = sorted(((2 * i + 1) * (product // c), s) for s, c in times for i in range(c))
    labels = [s for _, s in labels]
    if case["shuffle"]:
        key = make_key("mixture", sha256(b"shardfeed mixture 1\0"), case["seed"], case["epoch"], C, l)
        blocks = [labels[p:p + 1024] for p in range(0, len(labels), 1024)]
        labels = [s for j, block in enumerate(blocks) for s in permuted(block, key, j)]
    rests = [iter(queue) for queue in queues]
    return [next(rests[s]) for s in labels]

def mixture_lanes(case, sources, starts, C):
    """The epoch sequence and the lanes; a sample is (None, source, source epoch, shard, ordinal)."""
    N, o, sequence = sum(source["m"] for source in sources), 0, []
    queues = [[[] for _ in sources] for _ in range(C)]
    for s, (source, (E, D)) in enumerate(zip(sources, starts)):
        for i, portion in make_portions(case, source, E, D):
            named = lambda items: [(None, s, i, shard, ordinal) for _, shard, ordinal in items]
            sequence += named(portion)
            at, r = 0, len(portion) % C
            for l in range(C):
                size = len(portion) // C + ((l - o) % C < r)
                share = lambda number: max(1, number * source["m"] // N)
                part = portion[at:at + size]
                queues[l][s] += named(order_of_part(case, source, share, i, part, C, l))
                at += size
            o = (o + r) % C
    return sequence, [merged(case, queues[l], C, l) for l in range(C)]

def mixture_plan(case, ordered=lambda s, lanes: lanes):
    """Returns the answer of a case. Raises ValueError if the case is invalid. Segment s begins with
    its lanes as ordered(s, lanes) returns them."""
    check(case)
    stages = make_stages(case)
    starts = positions(stages)
    k = max(k for k, stage in enumerate(stages) if stage["first_epoch"] <= case["epoch"])
    sources, epochs = stages[k]["sources"], case["epoch"] - stages[k]["first_epoch"]
    here = [(E, D + epochs * source["m"]) for source, (E, D, _) in zip(sources, starts[k])]
    sequence, lanes = mixture_lanes(case, sources, here, case["segments"][0][0])
    return {
        **deliver(case, sequence, lanes, ordered),
        "counts": [[source["m"] for source in stage["sources"]] for stage in stages],
        "cut": [[cut for _, _, cut in start] for start in starts],
        "digest": [stages_digest(stages[:begun + 1]) for begun in range(len(stages))],
        "operator_keys": [make_key("source", sha256(source["name"].encode())) for source in sources],
    }

def answer(case):
    try:
        return mixture_plan(case)
    except ValueError as error:
        return {"error": str(error)}

def selftest():
    sources = [["web", "0.6", [3, 0, 5]], ["code", "0.4", [4]]]
    case = {"stages": [{"first_epoch": 0, "length": 10, "sources": sources}], "seed": 1, "epoch": 1,
            "shuffle": True, "window": 4, "interleave": 2, "block_length": 1, "tail": "drop",
            "limit": None, "segments": [[2, 2, 0]], "world_size": 1}
    stages = make_stages(case)
    code, web = stages[0]["sources"]
    assert (code["m"], web["m"]) == (4, 6)
    assert source_digest(web).hex() == (
        "08e8d223f285b1f9be377c09462e3fcf0cf2d9c64febe447e4fc63bd83659f54")
    assert stages_digest(stages) == "dedcf9b88a5754dd"
    plan = mixture_plan(case)
    assert plan["operator_keys"] == [10600548158559224991, 7299667896870858980]
    lanes = [[batch[0][l] for batch in plan["batches"]] for l in range(2)]
    assert [" ".join(f"{s}/{i}/{shard}.{o}" for s, i, shard, o, _ in lane) for lane in lanes] == [
        "1/0/0.1 0/1/0.0 1/1/0.0 1/1/2.4 0/1/0.1", "0/1/0.2 1/0/0.2 1/1/0.1 0/1/0.3 1/1/0.2"]
    print("selftest ok")

if __name__ == "__main__" and sys.argv[1:] == ["--selftest"]:
    selftest()
elif __name__ == "__main__":
    for text in sys.stdin:
        print(json.dumps(answer(json.loads(text))))
