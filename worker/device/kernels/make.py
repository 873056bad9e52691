"""Writes kernels.ptx beside this file: kernels that change batches on a device. Needs only Python.

    python3 worker/device/kernels/make.py            # writes kernels.ptx
    python3 worker/device/kernels/make.py --check    # checks that kernels.ptx is up to date
    make check-kernels                               # assembles it with NVIDIA's ptxas for each kind of GPU

The text is committed, so that building needs neither this script nor CUDA; a test compares both.
The worker's operators (worker/pipeline/src/operator/{cast,channels,gather}.rs, dtype.rs) define the
results: each line here does the same as a line there, in the same order and with the same rounding.
No operations are contracted: every operation that could be contracted specifies its rounding.

Each thread computes one number. `source` is read as `[images, rows, columns]`, `target` is
`[images, columns, rows]`; with one row nothing moves. The types are tested for each number: all
threads take the same branch, and separate kernels for each pair of types would be 185.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

FILE = Path(__file__).with_name("kernels.ptx")

#: In the order of `Number` in worker/device/src/kernels.rs.
TYPES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "int64", "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
#: PTX type for loads and stores, and size in bytes.
INTEGERS = {
    "uint8": ("u8", 1), "int8": ("s8", 1), "uint16": ("u16", 2), "int16": ("s16", 2), "uint32": ("u32", 4),
    "int32": ("s32", 4), "int64": ("s64", 8),
}  # fmt: skip
#: Types in the order in which they are tested, the most likely first.
LIKELY = sorted(TYPES, key=lambda name: (name not in ("uint8", "float32"), TYPES.index(name)))
#: Minimum and maximum, as float64. int64's maximum is no float64: there `cvt` saturates instead.
ENDS = {
    "uint8": (0, 0xFF), "int8": (-0x80, 0x7F), "uint16": (0, 0xFFFF), "int16": (-0x8000, 0x7FFF),
    "uint32": (0, 0xFFFFFFFF), "int32": (-0x80000000, 0x7FFFFFFF),
}  # fmt: skip

#: The oldest target is Volta. All supported drivers (525 and later) accept this PTX version.
HEADER = """\
// Written by make.py: do not edit.
.version 7.0
.target sm_70
.address_size 64
"""

REGISTERS = """\
    .reg .pred %p<2>;
    .reg .b16 %h<2>;
    .reg .b32 %r<24>;
    .reg .b64 %rd<8>;
    .reg .f32 %f<6>;
    .reg .f64 %fd<6>;
"""

# Register usage:
#   %r1 index in target, %r2 index in source, %r3 source type, %r4 target type, %r5 channel
#   %r6 and higher: temporary values
#   %rd1 source, %rd2 target, %rd3 an address, %rd4 an integer, %rd5 table
#   %f1, %fd1 a float


def f64(value: float) -> str:
    """Formats a float64 constant for PTX as bits, so that nothing is rounded."""
    return "0d" + struct.pack(">d", value).hex().upper()


def kernel(name: str, parameters: list[str], body: list[str]) -> str:
    """Formats an entry. Lines that end with a colon are labels."""
    names = ",\n".join(f"    .param .{kind} {what}" for kind, what in (p.split() for p in parameters))
    lines = [line if line.endswith(":") else f"    {line}" for line in body]
    return f"\n.visible .entry shardfeed_{name}(\n{names}\n)\n{{\n{REGISTERS}" + "\n".join(lines) + "\n}\n"


PLACES = ["u64 source", "u64 target", "u32 count", "u32 rows", "u32 columns"]


def places() -> list[str]:
    """Computes this thread's index: %r1 in the target, %r2 in the source. Ends surplus threads."""
    return [
        "mov.u32 %r6, %ctaid.x;",
        "mov.u32 %r7, %ntid.x;",
        "mov.u32 %r8, %tid.x;",
        "mad.lo.u32 %r1, %r6, %r7, %r8;",
        "ld.param.u32 %r9, [count];",
        "setp.ge.u32 %p1, %r1, %r9;",
        "@%p1 bra END;",
        "ld.param.u64 %rd1, [source];",
        "ld.param.u64 %rd2, [target];",
        "mov.u32 %r2, %r1;",
        "ld.param.u32 %r10, [rows];",
        "ld.param.u32 %r11, [columns];",
        "setp.eq.u32 %p1, %r10, 1;",
        "@%p1 bra PLACED;",
        "mul.lo.u32 %r12, %r10, %r11;",
        "rem.u32 %r13, %r1, %r12;",
        "sub.u32 %r14, %r1, %r13;",
        "div.u32 %r15, %r13, %r10;",
        "rem.u32 %r16, %r13, %r10;",
        "mad.lo.u32 %r17, %r16, %r11, %r15;",
        "add.u32 %r2, %r14, %r17;",
        "PLACED:",
    ]


def address(of: str, place: str, width: int) -> str:
    """Computes the address of the number at `place` in %rd3."""
    return f"mad.wide.u32 %rd3, {place}, {width}, {of};"


def choose(register: str, labels: dict[str, str]) -> list[str]:
    """Branches to the label of the type in the register; the last type is not tested."""
    lines = []
    for name in LIKELY[:-1]:
        lines += [f"setp.eq.u32 %p1, {register}, {TYPES.index(name)};", f"@%p1 bra {labels[name]};"]
    return [*lines, f"bra {labels[LIKELY[-1]]};"]


def load(integer: list[str], narrow: list[str], wide: list[str]) -> list[str]:
    """Reads the number and continues with the code for an integer in %rd4, a float32 in %f1 or a
    float64 in %fd1.
    """
    lines = ["ld.param.u32 %r3, [from];", *choose("%r3", {name: f"FROM_{name}" for name in TYPES})]
    for name, (kind, width) in INTEGERS.items():
        lines += [f"FROM_{name}:", address("%rd1", "%r2", width), f"ld.global.{kind} %rd4, [%rd3];", *integer]
    lines += [
        "FROM_bool:",
        address("%rd1", "%r2", 1),
        "ld.global.u8 %rd4, [%rd3];",
        "setp.ne.s64 %p1, %rd4, 0;",
        "selp.s64 %rd4, 1, 0, %p1;",
        *integer,
        "FROM_float16:",
        address("%rd1", "%r2", 2),
        "ld.global.b16 %h1, [%rd3];",
        "cvt.f32.f16 %f1, %h1;",
        *narrow,
        "FROM_bfloat16:",
        address("%rd1", "%r2", 2),
        "ld.global.u16 %r18, [%rd3];",
        "shl.b32 %r18, %r18, 16;",
        "mov.b32 %f1, %r18;",
        *narrow,
        "FROM_float32:",
        address("%rd1", "%r2", 4),
        "ld.global.f32 %f1, [%rd3];",
        *narrow,
        "FROM_float64:",
        address("%rd1", "%r2", 8),
        "ld.global.f64 %fd1, [%rd3];",
        *wide,
    ]
    return lines


def store_halves() -> list[str]:
    """Writes %f1 as float32, float16 or bfloat16."""
    return [
        "PUT_float32:",
        address("%rd2", "%r1", 4),
        "st.global.f32 [%rd3], %f1;",
        "bra END;",
        "PUT_float16:",
        address("%rd2", "%r1", 2),
        "cvt.rn.f16.f32 %h1, %f1;",
        "st.global.b16 [%rd3], %h1;",
        "bra END;",
        "PUT_bfloat16:",
        # The upper half, rounded to nearest, ties to even; NaN stays NaN. Older GPUs have no
        # instruction for this.
        address("%rd2", "%r1", 2),
        "mov.b32 %r18, %f1;",
        "shr.u32 %r19, %r18, 16;",
        "and.b32 %r20, %r19, 1;",
        "add.u32 %r20, %r20, 32767;",
        "add.u32 %r20, %r20, %r18;",
        "shr.u32 %r20, %r20, 16;",
        "or.b32 %r19, %r19, 64;",
        "setp.nan.f32 %p1, %f1, %f1;",
        "selp.b32 %r20, %r19, %r20, %p1;",
        "st.global.u16 [%rd3], %r20;",
        "bra END;",
    ]


def store_integer() -> list[str]:
    """Writes %rd4; integers wrap around."""
    lines = ["INTEGER:", *choose("%r4", {name: f"INTEGER_{name}" for name in TYPES})]
    for name, (kind, width) in INTEGERS.items():
        lines += [f"INTEGER_{name}:", address("%rd2", "%r1", width), f"st.global.{kind} [%rd3], %rd4;", "bra END;"]
    lines += [
        "INTEGER_bool:",
        address("%rd2", "%r1", 1),
        "setp.ne.s64 %p1, %rd4, 0;",
        "selp.u32 %r18, 1, 0, %p1;",
        "st.global.u8 [%rd3], %r18;",
        "bra END;",
        "INTEGER_float64:",
        address("%rd2", "%r1", 8),
        "cvt.rn.f64.s64 %fd1, %rd4;",
        "st.global.f64 [%rd3], %fd1;",
        "bra END;",
    ]
    for name in ("float32", "float16", "bfloat16"):
        lines += [f"INTEGER_{name}:", "cvt.rn.f32.s64 %f1, %rd4;", f"bra PUT_{name};"]
    return lines


def store_float() -> list[str]:
    """Writes %fd1: integers are truncated towards zero and saturate; NaN becomes 0."""
    lines = ["FLOAT:", *choose("%r4", {name: f"FLOAT_{name}" for name in TYPES})]
    for name, (kind, width) in INTEGERS.items():
        lines += [
            f"FLOAT_{name}:",
            address("%rd2", "%r1", width),
            "setp.nan.f64 %p1, %fd1, %fd1;",
            f"selp.f64 %fd1, {f64(0)}, %fd1, %p1;",
        ]
        if name in ENDS:
            least, largest = ENDS[name]
            lines += [f"max.f64 %fd1, %fd1, {f64(least)};", f"min.f64 %fd1, %fd1, {f64(largest)};"]
        lines += ["cvt.rzi.s64.f64 %rd4, %fd1;", f"st.global.{kind} [%rd3], %rd4;", "bra END;"]
    lines += [
        "FLOAT_bool:",
        address("%rd2", "%r1", 1),
        f"setp.neu.f64 %p1, %fd1, {f64(0)};",
        "selp.u32 %r18, 1, 0, %p1;",
        "st.global.u8 [%rd3], %r18;",
        "bra END;",
        "FLOAT_float64:",
        address("%rd2", "%r1", 8),
        "st.global.f64 [%rd3], %fd1;",
        "bra END;",
    ]
    for name in ("float32", "float16", "bfloat16"):
        # float16 and bfloat16 are converted through float32.
        lines += [f"FLOAT_{name}:", "cvt.rn.f32.f64 %f1, %fd1;", f"bra PUT_{name};"]
    return lines


END = ["END:", "ret;"]


def move() -> str:
    """Moves numbers of a given width to other positions."""
    lines = [*places(), "ld.param.u32 %r3, [width];"]
    widths = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
    for width in (1, 2, 4):
        lines += [f"setp.eq.u32 %p1, %r3, {width};", f"@%p1 bra MOVE_{width};"]
    for width in (8, 1, 2, 4):
        lines += [
            f"MOVE_{width}:",
            address("%rd1", "%r2", width),
            f"ld.global.{widths[width]} %rd4, [%rd3];",
            address("%rd2", "%r1", width),
            f"st.global.{widths[width]} [%rd3], %rd4;",
            "bra END;",
        ]
    return kernel("move", [*PLACES, "u32 width"], [*lines, *END])


def cast() -> str:
    """Converts numbers to another type. Floats go through float64, which represents all of them."""
    body = [
        *places(),
        "ld.param.u32 %r4, [to];",
        *load(["bra INTEGER;"], ["cvt.f64.f32 %fd1, %f1;", "bra FLOAT;"], ["bra FLOAT;"]),
        *store_integer(),
        *store_float(),
        *store_halves(),
        *END,
    ]
    return kernel("cast", [*PLACES, "u32 from", "u32 to"], body)


def normalize(kind: str) -> str:
    """Computes (x - mean) / std in this type, then casts.

    A table has all means, then all deviations. A number's index in both is its position modulo
    their count: its position in the target if `after` is not 0, else that in the source.
    """
    width, x = (4, "%f") if kind == "f32" else (8, "%fd")
    if kind == "f32":
        read = load(
            ["cvt.rn.f32.s64 %f1, %rd4;", "bra READ;"], ["bra READ;"], ["cvt.rn.f32.f64 %f1, %fd1;", "bra READ;"]
        )
        write = [
            f"setp.eq.u32 %p1, %r4, {TYPES.index('float32')};",
            "@%p1 bra PUT_float32;",
            "cvt.f64.f32 %fd1, %f1;",
            "bra FLOAT;",
        ]
    else:
        read = load(
            ["cvt.rn.f64.s64 %fd1, %rd4;", "bra READ;"], ["cvt.f64.f32 %fd1, %f1;", "bra READ;"], ["bra READ;"]
        )
        write = ["bra FLOAT;"]
    body = [
        *places(),
        "ld.param.u32 %r4, [to];",
        *read,
        "READ:",
        "ld.param.u64 %rd5, [table];",
        "ld.param.u32 %r6, [channels];",
        "ld.param.u32 %r7, [after];",
        "setp.ne.u32 %p1, %r7, 0;",
        "selp.b32 %r8, %r1, %r2, %p1;",
        "rem.u32 %r5, %r8, %r6;",
        address("%rd5", "%r5", width),
        f"ld.global.{kind} {x}2, [%rd3];",
        "add.u32 %r5, %r5, %r6;",
        address("%rd5", "%r5", width),
        f"ld.global.{kind} {x}3, [%rd3];",
        f"sub.rn.{kind} {x}4, {x}1, {x}2;",
        f"div.rn.{kind} {x}1, {x}4, {x}3;",
        *write,
        *store_float(),
        *store_halves(),
        *END,
    ]
    parameters = [*PLACES, "u32 from", "u32 to", "u64 table", "u32 channels", "u32 after"]
    return kernel(f"normalize_{kind}", parameters, body)


def text() -> str:
    """Returns the content of kernels.ptx."""
    return HEADER + move() + cast() + normalize("f32") + normalize("f64")


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        if FILE.read_text() != text():
            sys.exit(f"error: {FILE} differs from the output of make.py: run it without --check, and commit both")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        FILE.write_text(text())


if __name__ == "__main__":
    main()
