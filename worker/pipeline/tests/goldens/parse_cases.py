"""Test batches of Examples and SequenceExamples, as hand-written wire bytes, with their specs."""

import pathlib
import sys

sys.path.insert(
    0, str(pathlib.Path(__file__).resolve().parents[4] / "common/tfrecord/tests/goldens")
)
from example_cases import (  # noqa: E402
    bytes_list,
    entry,
    example,
    field,
    floats,
    ints,
    packed_floats,
    packed_ints,
    strings,
    unpacked_floats,
    unpacked_ints,
    varint,
)

VALUES = {
    "int64": (ints, packed_ints, [3, -1, 1 << 40, 0, 7, -(1 << 63)]),
    "float32": (floats, packed_floats, [1.5, -0.0, 3e38, 2.0, 0.25, -7.0]),
    "bytes": (bytes_list, strings, [b"a", b"", b"xyz", b"\xff\x00", b"b", b"long" * 9]),
}
UNPACKED = {"int64": unpacked_ints, "float32": unpacked_floats}
OTHER = {"int64": "float32", "float32": "bytes", "bytes": "int64"}
KEY = b"x"


def feature(dtype, *values):
    kind, body, _ = VALUES[dtype]
    return kind(body(*values) if values else b"")


def of(dtype, count):
    """A Feature message with `count` values."""
    return feature(dtype, *VALUES[dtype][2][:count])


def numbers(*values):
    return feature("int64", *values)


def default(dtype, *values):
    return {dtype: [list(value) if dtype == "bytes" else value for value in values]}


def fixed(dtype, shape=(), value=None):
    return {"fixed_len": {"shape": list(shape), "dtype": dtype, "default": value}}


def var(dtype):
    return {"var_len": {"dtype": dtype}}


def sequence(dtype, shape=(), allow_missing=True, value=None):
    fields = {"shape": list(shape), "dtype": dtype, "allow_missing": allow_missing}
    return {"fixed_len_sequence": fields | ({"default": value} if value else {})}


def ragged(dtype, *partitions, value_key=None):
    fields = {"dtype": dtype, "partitions": list(partitions)}
    return {"ragged": fields | ({"value_key": value_key} if value_key else {})}


def sparse(dtype, keys, size, already_sorted=False):
    return {
        "sparse": {
            "dtype": dtype,
            "index_keys": keys,
            "value_key": "x",
            "size": size,
            "already_sorted": already_sorted,
        }
    }


def conditions(dtype, good):
    """Variants of the key's entries for a feature of `good` values: name, encoded entries."""
    values = VALUES[dtype][2]
    yield "present", entry(KEY, of(dtype, good))
    yield "missing", entry(b"other", numbers(1))
    yield "kindless", entry(KEY, b"")
    yield "empty", entry(KEY, of(dtype, 0))
    yield "one more", entry(KEY, of(dtype, good + 1))
    yield "one less", entry(KEY, of(dtype, good - 1))
    yield "twice as many", entry(KEY, of(dtype, 2 * good))
    yield "wrong dtype", entry(KEY, of(OTHER[dtype], good))
    yield "wrong dtype, empty", entry(KEY, of(OTHER[dtype], 0))
    yield "twice", entry(KEY, of(dtype, good + 1)) + entry(KEY, of(dtype, good))
    yield (
        "twice, first of another dtype",
        entry(KEY, of(OTHER[dtype], 1)) + entry(KEY, of(dtype, good)),
    )
    if dtype in UNPACKED:
        yield "unpacked", entry(KEY, VALUES[dtype][0](UNPACKED[dtype](*values[:good])))
    yield "unknown field in feature", entry(KEY, of(dtype, good) + b"\x78\x05")
    yield "cut", entry(KEY, of(dtype, good)[:-1] + b"")


def example_specs(dtype):
    """Feature kinds that read only the key: name, number of values that fits, spec."""
    first = VALUES[dtype][2][0]
    yield "fixed", 1, fixed(dtype)
    yield "fixed [2]", 2, fixed(dtype, [2])
    yield "fixed [1, 2], default", 2, fixed(dtype, [1, 2], default(dtype, first, first))
    yield "fixed, default", 1, fixed(dtype, [], default(dtype, first))
    yield "var", 2, var(dtype)
    yield "sequence", 2, sequence(dtype)
    yield "sequence, default", 2, sequence(dtype, (), True, default(dtype, first))
    yield "sequence [2]", 2, sequence(dtype, [2])
    yield "sequence [3, 1], default", 3, sequence(dtype, [3, 1], True, default(dtype, first))
    yield "sequence, not to be missing", 2, sequence(dtype, (), False)
    yield "ragged", 2, ragged(dtype)
    yield "ragged, uniform 2", 2, ragged(dtype, {"uniform_row_length": 2})


def deep(levels):
    """Messages nested `levels` deep."""
    body = b""
    for _ in range(levels):
        body = field(15, body)
    return body


PARTITIONS = {
    # Partitions of five values into the rows [2, 0, 3].
    "row_splits": [0, 2, 2, 5],
    "row_lengths": [2, 0, 3],
    "row_starts": [0, 2, 2],
    "row_limits": [2, 2, 5],
    "value_row_ids": [0, 0, 2, 2, 2],
}


def example_batches():
    for dtype in VALUES:
        for what, good, spec in example_specs(dtype):
            whole = example(entry(KEY, of(dtype, good)))
            for condition, body in conditions(dtype, good):
                yield f"{dtype} {what}: {condition}", [whole, example(body), whole], {"x": spec}
        for what, good, spec in example_specs(dtype):
            yield f"{dtype} {what}: alone", [example(entry(KEY, of(dtype, good)))], {"x": spec}

        for kind, rows in PARTITIONS.items():
            spec = {"x": ragged(dtype, {kind: "p"})}
            parted = example(entry(KEY, of(dtype, 5)), entry(b"p", numbers(*rows)))
            nothing = example(entry(b"other", numbers(1)))
            yield f"{dtype} {kind}", [parted, parted], spec
            yield f"{dtype} {kind}: nothing between", [parted, nothing, parted], spec
            yield f"{dtype} {kind}: nothing at all", [nothing], spec
            renamed = {"r": ragged(dtype, {kind: "p"}, value_key="x")}
            yield f"{dtype} {kind}: value_key", [parted, nothing], renamed
        both = example(
            entry(KEY, of(dtype, 5)),
            entry(b"p", numbers(2, 0, 3)),
            entry(b"q", numbers(0, 1, 3)),
        )
        yield (
            f"{dtype} two partitions",
            [both, both],
            {"x": ragged(dtype, {"row_splits": "q"}, {"row_lengths": "p"})},
        )
        six = example(entry(KEY, of(dtype, 6)), entry(b"p", numbers(1, 2)))
        inner = {"x": ragged(dtype, {"row_lengths": "p"}, {"uniform_row_length": 2})}
        yield f"{dtype} rows of uniform rows", [six, six], inner
        outer = example(entry(KEY, of(dtype, 5)), entry(b"p", numbers(2, 0, 3, 0)))
        yield (
            f"{dtype} uniform rows of rows",
            [outer, outer],
            {"x": ragged(dtype, {"uniform_row_length": 2}, {"row_lengths": "p"})},
        )
        yield (
            f"{dtype} uniform rows of uniform rows",
            [example(entry(KEY, of(dtype, 6)))] * 2,
            {"x": ragged(dtype, {"uniform_row_length": 3}, {"uniform_row_length": 2})},
        )

        def placed(*indices, dtype=dtype):
            keys = [b"i", b"j"]
            places = [
                entry(key, numbers(*index)) for key, index in zip(keys, indices, strict=False)
            ]
            return example(entry(KEY, of(dtype, len(indices[0]))), *places)

        one, two = sparse(dtype, ["i"], [10]), sparse(dtype, ["i", "j"], [10, 4])
        nothing = example(entry(b"other", numbers(1)))
        good = placed([1, 3, 9])
        yield f"{dtype} sparse", [good, nothing, good], {"s": one}
        yield f"{dtype} sparse, unsorted", [good, placed([9, 0, 3])], {"s": one}
        yield f"{dtype} sparse, same place", [placed([3, 3])], {"s": one}
        yield (
            f"{dtype} sparse, said to be sorted",
            [good],
            {"s": sparse(dtype, ["i"], [10], True)},
        )
        yield f"{dtype} sparse, outside", [good, placed([10])], {"s": one}
        yield f"{dtype} sparse, negative", [good, placed([-1])], {"s": one}
        longer = example(entry(KEY, of(dtype, 2)), entry(b"i", numbers(1)))
        yield f"{dtype} sparse, fewer places", [longer], {"s": one}
        yield f"{dtype} sparse 2-D", [placed([1, 9, 1], [3, 0, 0]), nothing], {"s": two}
        yield f"{dtype} sparse and its index", [good, nothing], {"s": one, "i": var("int64")}
        yield f"{dtype} sparse and its values", [good, nothing], {"s": one, "x": var(dtype)}

    x = {"x": var("int64")}
    yield "deep unknown fields", [deep(200) + example(entry(KEY, of("int64", 2)))], x
    yield "no records", [], x
    record = example(entry(KEY, of("int64", 2)), entry(b"y", of("bytes", 2)))
    for end in range(len(record)):
        yield f"cut at {end}", [record, record[:end]], {"x": sequence("int64"), "y": ragged("bytes")}


def sequence_example(context=b"", lists=b""):
    out = field(1, context) if context else b""
    return out + (field(2, lists) if lists else b"")


def steps(*features):
    """A FeatureList message."""
    return b"".join(field(1, one) for one in features)


def list_conditions(dtype, good):
    full, values = of(dtype, good), VALUES[dtype][2]
    yield "present", entry(KEY, steps(full, full))
    yield "missing", entry(b"other", steps(numbers(1)))
    yield "no steps", entry(KEY, b"")
    yield "longer", entry(KEY, steps(full, full, full, full))
    yield "a kindless step", entry(KEY, steps(full, b"", full))
    yield "an empty step", entry(KEY, steps(full, of(dtype, 0), full))
    yield "one more in a step", entry(KEY, steps(full, of(dtype, good + 1)))
    yield "one less in a step", entry(KEY, steps(of(dtype, good - 1), full))
    yield "a step of another dtype", entry(KEY, steps(full, of(OTHER[dtype], good)))
    yield "twice", entry(KEY, steps(full)) + entry(KEY, steps(full, full))
    if dtype in UNPACKED:
        body = VALUES[dtype][0](UNPACKED[dtype](*values[:good]))
        yield "unpacked", entry(KEY, steps(full, body))
    yield "unknown field in list", entry(KEY, steps(full) + b"\x78\x05" + steps(full))
    yield "unknown field in step", entry(KEY, steps(full + b"\x78\x05"))
    yield "cut", entry(KEY, steps(full, full)[:-1])


def list_specs(dtype):
    yield "sequence", 1, sequence(dtype, (), False)
    yield "sequence, may be missing", 1, sequence(dtype, (), True)
    yield "sequence [2]", 2, sequence(dtype, [2], True)
    yield "sequence [2, 1]", 2, sequence(dtype, [2, 1], False)
    yield "var", 2, var(dtype)
    yield "ragged", 2, ragged(dtype)
    yield "ragged, uniform 2", 2, ragged(dtype, {"uniform_row_length": 2})


def sequence_batches():
    for dtype in VALUES:
        for what, good, spec in list_specs(dtype):
            full = of(dtype, good)
            whole = sequence_example(lists=entry(KEY, steps(full, full)))
            for condition, body in list_conditions(dtype, good):
                records = [whole, sequence_example(lists=body), whole]
                yield f"{dtype} list {what}: {condition}", records, {}, {"x": spec}
        whole = sequence_example(
            lists=entry(KEY, steps(of(dtype, 5), of(dtype, 2)))
            + entry(b"p", steps(numbers(2, 0, 3), numbers(2)))
        )
        nothing = sequence_example(context=entry(b"c", numbers(1)))
        parted = {"x": ragged(dtype, {"row_lengths": "p"})}
        yield f"{dtype} list parted", [whole, whole], {}, parted
        yield f"{dtype} list parted, nothing between", [whole, nothing, whole], {}, parted
        for what, good, spec in example_specs(dtype):
            if "sequence" in what:
                continue
            for condition, body in conditions(dtype, good):
                if "twice" in condition or "unknown" in condition:
                    continue
                lists = entry(b"y", steps(numbers(4)))
                whole = sequence_example(entry(KEY, of(dtype, good)), lists)
                records = [whole, sequence_example(body, lists)]
                name = f"{dtype} context {what}: {condition}"
                yield name, records, {"x": spec}, {"y": sequence("int64")}

    lists = entry(b"y", steps(numbers(4), numbers(5)))
    whole = sequence_example(entry(KEY, of("int64", 1)), lists)
    y = {"y": var("int64")}
    yield "lists in two pieces", [whole + field(2, entry(b"z", steps(numbers(1))))], {}, y
    yield "context in two pieces", [whole + field(1, entry(KEY, numbers(9)))], {"x": fixed("int64")}, y
    yield "empty record", [b""], {}, {"y": sequence("int64")}
    yield "empty record, needed", [b""], {}, {"y": sequence("int64", (), False)}
    yield "unknown field", [b"\x78\x05" + whole], {"x": fixed("int64")}, y
    for end in range(len(whole)):
        yield f"sequence cut at {end}", [whole, whole[:end]], {"x": var("int64")}, y


__all__ = ["example_batches", "sequence_batches", "varint"]
