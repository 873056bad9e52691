"""The independent oracle of docs/ORDER.md, section 15 (balanced steps): written from that text alone.

    python3 tests/balance_oracle.py < cases.jsonl    # one JSON case per line, one answer per line
    python3 tests/balance_oracle.py --selftest       # the check vectors of section 15

A case has the keys of order_oracle.py, balance_window, and costs[shard][ordinal]. Answers are those
of order_oracle.py. A case with stages is that of a mixture, with the keys and answers of
mixture_oracle.py, and costs[source][shard][ordinal].
"""
import hashlib
import json
import sys

from mixture_oracle import mixture_plan
from order_oracle import check, deliver, first_lanes, make_key, make_line, order_digest, permuted
from order_oracle import require

def cost_of(case, sample):
    """A sample is (place, shard, ordinal), in a mixture (place, source, source epoch, shard, ordinal)."""
    shards = case["costs"][sample[1]] if len(sample) == 5 else case["costs"]
    shard, ordinal = sample[-2:]
    return shards[shard][ordinal]

def balanced(case, digest, s, lanes):
    C, B, _ = case["segments"][s]
    b = B // C
    M, T = max(1, case["balance_window"] // b), min(map(len, lanes)) // b * b
    common = make_key("balance", digest, case["seed"], case["epoch"], s, C)
    result = []
    for l, lane in enumerate(lanes):
        own = make_key("balance lane", digest, case["seed"], case["epoch"], s, C, l)
        order = []
        for j, start in enumerate(range(0, T, M * b)):
            samples = sorted(lane[start:min(T, start + M * b)],
                             key=lambda sample: cost_of(case, sample))
            groups = [permuted(samples[at:at + b], own, j * M + q)
                      for q, at in enumerate(range(0, len(samples), b))]
            order += sum(permuted(groups, common, j), [])
        result.append(order + lane[T:])
    return result

def balanced_plan(case):
    """Returns the answer of a case. Raises ValueError if the case is invalid."""
    check(case)
    require(1 <= case["balance_window"] <= 2**20, "balance window")
    if "stages" in case:
        mixed = hashlib.sha256(b"shardfeed mixture 1\0").digest()
        return mixture_plan(case, lambda s, lanes: balanced(case, mixed, s, lanes))
    digest = order_digest(case["counts"])
    line = make_line(case, digest)
    lanes = first_lanes(case, line, digest, case["segments"][0][0])
    return deliver(case, line, lanes, lambda s, lanes: balanced(case, digest, s, lanes))

def answer(case):
    try:
        return balanced_plan(case)
    except ValueError as error:
        return {"error": str(error)}

def selftest():
    case = {"counts": [12], "seed": 1, "epoch": 2, "shuffle": False, "window": 1, "interleave": 1,
            "block_length": 1, "tail": "drop", "limit": None, "segments": [[2, 4, 0]],
            "world_size": 2, "balance_window": 4, "costs": [[5, 1, 4, 1, 3, 9, 2, 6, 5, 3, 5, 8]]}
    batches = balanced_plan(case)["batches"]
    lanes = [[ordinal for batch in batches for _, ordinal, _ in batch[l]] for l in range(2)]
    assert lanes == [[0, 2, 3, 1, 5, 4], [7, 8, 6, 9, 10, 11]]
    costs = [[i * i % 7 for i in range(17)], [], [5 * i % 8 for i in range(25)]]
    case |= {"counts": [17, 0, 25], "shuffle": True, "window": 8, "interleave": 2, "world_size": 1,
             "segments": [[2, 6, 2], [3, 9, 0]], "balance_window": 9, "costs": costs}
    plan = balanced_plan(case)
    assert (plan["steps"], plan["dropped"]) == (3, 3)
    assert [(shard, i) for shard, i, _ in plan["batches"][0][0]] == [
        (2, 13), (2, 5), (2, 2), (2, 9), (2, 18), (0, 11), (0, 5), (0, 4), (0, 2)]
    print("selftest ok")

if __name__ == "__main__" and sys.argv[1:] == ["--selftest"]:
    selftest()
elif __name__ == "__main__":
    for text in sys.stdin:
        print(json.dumps(answer(json.loads(text))))
