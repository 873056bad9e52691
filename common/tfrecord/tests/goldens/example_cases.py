"""The cases of `examples.json`: Examples, hand-written wire bytes, and the requested features."""

import struct


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, payload):
    """Encodes a length-delimited field."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def packed_ints(*values):
    return field(1, b"".join(map(varint, values)))


def unpacked_ints(*values):
    return b"".join(b"\x08" + varint(value) for value in values)


def packed_floats(*values):
    return field(1, struct.pack(f"<{len(values)}f", *values))


def unpacked_floats(*values):
    return b"".join(b"\x0d" + struct.pack("<f", value) for value in values)


def strings(*values):
    return b"".join(field(1, value) for value in values)


def bytes_list(body):
    return field(1, body)


def floats(body):
    return field(2, body)


def ints(body):
    return field(3, body)


def entry(key, feature):
    return field(1, field(1, key) + field(2, feature))


def example(*entries):
    return field(1, b"".join(entries))


def fixed(dtype, shape=(), default=None):
    if default is not None:
        default = {dtype: [list(value) if dtype == "bytes" else value for value in default]}
    return {"fixed_len": {"shape": list(shape), "dtype": dtype, "default": default}}


def var(dtype):
    return {"var_len": {"dtype": dtype}}


def cases():
    i, f, s = b"i", b"f", b"s"
    one = entry(i, ints(packed_ints(5)))
    both = [b"abc", b""]
    lists = {
        "int64": (ints, packed_ints, [1, -1, 1 << 40]),
        "float32": (floats, packed_floats, [1.5, -0.0, 3e38]),
        "bytes": (bytes_list, strings, [b"a", b"", b"xyz" * 50]),
    }
    for dtype, (kind, body, values) in lists.items():
        key = b"x"
        for count in range(4):
            record = example(entry(key, kind(body(*values[:count]) if count else b"")))
            yield f"{dtype} {count} values as scalar", record, {"x": fixed(dtype)}
            yield f"{dtype} {count} values as [2]", record, {"x": fixed(dtype, [2])}
            yield f"{dtype} {count} values as var", record, {"x": var(dtype)}
        yield (
            f"{dtype} three values as [3, 1]",
            example(entry(key, kind(body(*values)))),
            {"x": fixed(dtype, [3, 1])},
        )
        default = [values[0]]
        yield f"{dtype} missing, default", example(one), {"x": fixed(dtype, [], default)}
        yield f"{dtype} missing, default [2]", example(one), {"x": fixed(dtype, [2], values[:2])}
        yield (
            f"{dtype} missing, scalar default for [2]",
            example(one),
            {"x": fixed(dtype, [2], default)},
        )
        yield f"{dtype} missing, no default", example(one), {"x": fixed(dtype)}
        none = {"x": fixed(dtype, [2, 0], [])}
        yield f"{dtype} missing, default of [2, 0]", example(one), none
        yield f"{dtype} empty list, default of [2, 0]", example(entry(key, kind(b""))), none
        yield f"{dtype} missing, var", example(one), {"x": var(dtype)}
        yield f"{dtype} kindless", example(entry(key, b"")), {"x": fixed(dtype)}
        yield (
            f"{dtype} kindless, default",
            example(entry(key, b"")),
            {"x": fixed(dtype, [], default)},
        )
        yield f"{dtype} kindless, var", example(entry(key, b"")), {"x": var(dtype)}
        yield (
            f"{dtype} empty list, default",
            example(entry(key, kind(b""))),
            {"x": fixed(dtype, [], default)},
        )
        yield f"{dtype} default too long", example(one), {"x": fixed(dtype, [1], values)}
        for other in lists:
            if other != dtype:
                record = example(entry(key, kind(body(values[0]))))
                yield f"{dtype} asked as {other}", record, {"x": fixed(other)}
                yield f"{dtype} asked as {other}, var", record, {"x": var(other)}
        yield (
            f"{dtype} empty list of another type",
            example(entry(key, kind(b""))),
            {"x": var("bytes" if dtype != "bytes" else "int64")},
        )

    yield "empty record, var", b"", {"i": var("int64")}
    yield "empty record, required", b"", {"i": fixed("int64")}
    yield "shape [0], empty list", example(entry(i, ints(b""))), {"i": fixed("int64", [0])}
    yield "ints unpacked", example(entry(i, ints(unpacked_ints(1, -5, 300)))), {"i": var("int64")}
    yield (
        "floats unpacked",
        example(entry(f, floats(unpacked_floats(1, 2.5)))),
        {"f": var("float32")},
    )
    yield (
        "ints packed in two pieces",
        example(entry(i, ints(packed_ints(1, 2) + packed_ints(3)))),
        {"i": var("int64")},
    )
    yield (
        "floats packed in two pieces",
        example(entry(f, floats(packed_floats(1, 2) + packed_floats(3)))),
        {"f": var("float32")},
    )
    yield (
        "ints packed then unpacked",
        example(entry(i, ints(packed_ints(1) + unpacked_ints(2)))),
        {"i": var("int64")},
    )
    yield (
        "ints unpacked then packed",
        example(entry(i, ints(unpacked_ints(1) + packed_ints(2)))),
        {"i": var("int64")},
    )
    yield (
        "floats packed then unpacked",
        example(entry(f, floats(packed_floats(1) + unpacked_floats(2)))),
        {"f": var("float32")},
    )
    yield (
        "floats unpacked then packed",
        example(entry(f, floats(unpacked_floats(1) + packed_floats(2)))),
        {"f": var("float32")},
    )
    yield "ints empty packed piece", example(entry(i, ints(packed_ints()))), {"i": var("int64")}
    yield (
        "extreme ints",
        example(entry(i, ints(packed_ints(-(1 << 63), (1 << 63) - 1, 0)))),
        {"i": var("int64")},
    )
    yield (
        "infinities and nan",
        example(entry(f, floats(packed_floats(float("inf"), float("-inf"), float("nan"))))),
        {"f": var("float32")},
    )
    yield (
        "int of 10 bytes with high bits",
        example(entry(i, ints(field(1, b"\xff" * 9 + b"\x7f")))),
        {"i": var("int64")},
    )
    yield (
        "int of 11 bytes",
        example(entry(i, ints(field(1, b"\xff" * 10 + b"\x01")))),
        {"i": var("int64")},
    )
    yield "int not minimal", example(entry(i, ints(field(1, b"\x85\x80\x00")))), {"i": var("int64")}
    yield (
        "int cut inside packed",
        example(entry(i, ints(field(1, b"\x05\x85")))),
        {"i": var("int64")},
    )
    yield (
        "packed floats of 6 bytes",
        example(entry(f, floats(field(1, bytes(6))))),
        {"f": var("float32")},
    )
    yield "duplicate key", example(one, entry(i, ints(packed_ints(6)))), {"i": fixed("int64")}
    yield (
        "duplicate key, first of wrong dtype",
        example(entry(i, floats(packed_floats(1))), one),
        {"i": fixed("int64")},
    )
    yield (
        "duplicate key, last of wrong dtype",
        example(one, entry(i, floats(packed_floats(1)))),
        {"i": fixed("int64")},
    )
    yield "duplicate key, last kindless", example(one, entry(i, b"")), {"i": fixed("int64")}
    yield (
        "duplicate key, last kindless, default",
        example(one, entry(i, b""), entry(f, b"")),
        {"i": fixed("int64", [], [9])},
    )
    yield (
        "duplicate key, first malformed inside",
        example(entry(i, b"\x1a\x05\x0a"), one),
        {"i": fixed("int64")},
    )
    yield (
        "features in two pieces",
        example(one) + example(entry(s, bytes_list(strings(*both)))),
        {"i": fixed("int64"), "s": var("bytes")},
    )
    yield (
        "features in two pieces, same key",
        example(one) + example(entry(i, ints(packed_ints(8)))),
        {"i": fixed("int64")},
    )
    yield (
        "oneof twice, same kind",
        example(entry(i, ints(packed_ints(1)) + ints(packed_ints(2)))),
        {"i": var("int64")},
    )
    yield (
        "oneof twice, other kind",
        example(entry(i, ints(packed_ints(1)) + floats(packed_floats(2)))),
        {"i": var("int64")},
    )
    yield (
        "oneof twice, other kind, asked last",
        example(entry(i, ints(packed_ints(1)) + floats(packed_floats(2)))),
        {"i": var("float32")},
    )
    yield (
        "oneof there and back",
        example(entry(i, ints(packed_ints(1)) + floats(packed_floats(2)) + ints(packed_ints(3)))),
        {"i": var("int64")},
    )
    yield (
        "value before key",
        example(field(1, field(2, ints(packed_ints(5))) + field(1, i))),
        {"i": fixed("int64")},
    )
    yield "entry without value", example(field(1, field(1, i))), {"i": fixed("int64", [], [3])}
    yield "entry without value or default", example(field(1, field(1, i))), {"i": fixed("int64")}
    yield (
        "entry without key",
        example(field(1, field(2, ints(packed_ints(5))))),
        {"i": var("int64")},
    )
    yield (
        "entry without key, empty name",
        example(field(1, field(2, ints(packed_ints(5))))),
        {"": fixed("int64")},
    )
    yield "empty entry", example(field(1, b""), one), {"i": fixed("int64")}
    yield (
        "entry with two keys",
        example(field(1, field(1, b"z") + field(1, i) + field(2, ints(packed_ints(5))))),
        {"i": fixed("int64", [], [3])},
    )
    yield (
        "entry with two values",
        example(
            field(1, field(1, i) + field(2, ints(packed_ints(4))) + field(2, ints(packed_ints(5))))
        ),
        {"i": var("int64")},
    )
    unknowns = {
        "varint": b"\x78\x05",
        "fixed64": b"\x79" + bytes(8),
        "bytes": field(15, b"xy"),
        "fixed32": b"\x7d" + bytes(4),
    }
    for name, unknown in unknowns.items():
        yield f"unknown {name} in example", unknown + example(one) + unknown, {"i": fixed("int64")}
        yield (
            f"unknown {name} in features",
            field(1, unknown + one + unknown),
            {"i": fixed("int64")},
        )
        yield (
            f"unknown {name} in entry",
            example(field(1, field(1, i) + unknown + field(2, ints(packed_ints(5))))),
            {"i": fixed("int64")},
        )
        yield (
            f"unknown {name} before kind",
            example(entry(i, unknown + ints(packed_ints(5)))),
            {"i": fixed("int64")},
        )
        yield (
            f"unknown {name} behind kind",
            example(entry(i, ints(packed_ints(5)) + unknown)),
            {"i": fixed("int64")},
        )
        yield (
            f"unknown {name} before values",
            example(entry(i, ints(unknown + packed_ints(5)))),
            {"i": fixed("int64")},
        )
        yield (
            f"unknown {name} behind values",
            example(entry(i, ints(packed_ints(5) + unknown))),
            {"i": fixed("int64")},
        )
    group = b"\x7b\x7c"
    yield "group in example", group + example(one), {"i": fixed("int64")}
    yield "group in features", field(1, group + one), {"i": fixed("int64")}
    yield "end of a group that is none", b"\x7c" + example(one), {"i": fixed("int64")}
    yield "field 0", b"\x02\x00" + example(one), {"i": fixed("int64")}
    yield "wire type 6", b"\x7e" + example(one), {"i": fixed("int64")}
    yield "wire type 7", b"\x7f" + example(one), {"i": fixed("int64")}
    yield "features as varint", b"\x08\x05" + example(one), {"i": fixed("int64")}
    yield "int value as fixed64", example(entry(i, ints(b"\x09" + bytes(8)))), {"i": var("int64")}
    yield "float value as varint", example(entry(f, floats(b"\x08\x05"))), {"f": var("float32")}
    yield "bytes value as varint", example(entry(s, bytes_list(b"\x08\x05"))), {"s": var("bytes")}
    yield (
        "key is not utf-8",
        example(entry(b"\xff", ints(packed_ints(1))), one),
        {"i": fixed("int64")},
    )
    yield (
        "unwanted feature malformed inside",
        example(entry(b"z", b"\x1a\x05\x0a"), one),
        {"i": fixed("int64")},
    )
    record = example(
        one, entry(f, floats(packed_floats(1.5))), entry(s, bytes_list(strings(*both)))
    )
    for end in range(0, len(record), 3):
        yield (
            f"cut at {end}",
            record[:end],
            {"i": var("int64"), "f": var("float32"), "s": var("bytes")},
        )
    yield "behind the end", record + b"\x0a", {"i": var("int64")}
    yield "length over the end", b"\x0a\xff\xff\xff\xff\x0f" + one, {"i": var("int64")}
    yield "length of 2^63", b"\x0a" + varint(1 << 63) + one, {"i": var("int64")}
    yield "text", b"The quick brown fox", {"i": var("int64")}
    yield (
        "sequence example",
        record + field(2, field(1, field(1, b"steps") + field(2, field(1, ints(packed_ints(1)))))),
        {"i": fixed("int64")},
    )
