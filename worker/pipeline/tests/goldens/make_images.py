"""Records the results of TensorFlow's image operations for some images in `images.json`.

    python make_images.py      # needs tensorflow (made with 2.21) and pillow, which writes the rarer files

The pictures are generated here: gradients, edges and noise, so that no third-party image is needed.
"""

import base64
import io
import json
import os
import pathlib
import struct
import zlib

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf
from PIL import Image

from make_goldens import message

rng = np.random.default_rng(11)
HEIGHT, WIDTH = 21, 19


def picture(channels, height=HEIGHT, width=WIDTH, most=255):
    """A smooth picture, with a sharp edge and some noise."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    planes = [
        0.5 + 0.4 * np.sin(x / (5 + 2 * c) + c) * np.cos(y / (7 + c)) + 0.08 * ((x + 2 * y) > 25 + 5 * c)
        for c in range(channels)
    ]
    planes = np.stack(planes, -1) + rng.normal(0, 0.02, (height, width, channels))
    return np.clip(planes * most, 0, most).astype(np.uint16 if most > 255 else np.uint8)


def pillow(array, mode=None, **options):
    out = io.BytesIO()
    image = Image.fromarray(array.squeeze(), mode) if not isinstance(array, Image.Image) else array
    image.save(out, **options)
    return out.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(array, color, depth, extra=b"", interlaced=False, header=None):
    """A PNG of unchanged samples, with unfiltered rows."""
    height, width = array.shape[:2]

    def packed(rows):
        lines = b""
        for row in rows:
            flat = row.reshape(-1)
            if depth == 16:
                line = flat.astype(">u2").tobytes()
            elif depth == 8:
                line = flat.astype(np.uint8).tobytes()
            else:
                bits = np.concatenate([[(v >> (depth - 1 - b)) & 1 for b in range(depth)] for v in flat])
                line = np.packbits(bits.astype(np.uint8)).tobytes()
            lines += b"\0" + line
        return lines

    if interlaced:
        passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
        data = b"".join(packed(array[y::dy, x::dx]) for y, x, dy, dx in passes if array[y::dy, x::dx].size)
    else:
        data = packed(array)
    width, height = header or (width, height)
    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + extra
        + chunk(b"IDAT", zlib.compress(data))
        + chunk(b"IEND", b"")
    )


def jpegs():
    color, grey = picture(3), picture(1)
    for quality in (50, 95):
        for down in (True, False):
            yield (
                f"quality {quality} {'4:2:0' if down else '4:4:4'}",
                tf.io.encode_jpeg(color, quality=quality, chroma_downsampling=down).numpy(),
            )
    yield "4:2:2", pillow(color, format="JPEG", quality=90, subsampling="4:2:2")
    yield "grey", tf.io.encode_jpeg(grey).numpy()
    yield "progressive", pillow(color, format="JPEG", quality=90, progressive=True)
    yield "progressive grey", pillow(grey, format="JPEG", quality=90, progressive=True)
    yield "optimized", pillow(color, format="JPEG", quality=90, optimize=True)
    yield "restarts", pillow(color, format="JPEG", quality=90, restart_marker_blocks=2)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be rotated clockwise
    yield "orientation", pillow(color, format="JPEG", quality=90, exif=exif)
    yield "cmyk", pillow(Image.fromarray(picture(4), "CMYK"), format="JPEG", quality=95)
    rgb = pillow(color, format="JPEG", quality=95, keep_rgb=True)
    yield "rgb", rgb
    yield "one pixel", tf.io.encode_jpeg(picture(3, 1, 1)).numpy()
    yield "one row", tf.io.encode_jpeg(picture(3, 1, 40)).numpy()
    yield "bytes after the end", tf.io.encode_jpeg(color).numpy() + b"more"
    yield "comment", pillow(color, format="JPEG", comment=b"x" * 300)


def pngs():
    """Name and bytes of each file."""
    for channels, kind in ((1, 0), (3, 2), (2, 4), (4, 6)):
        yield f"{channels} x 8", png(picture(channels), kind, 8)
        yield f"{channels} x 16", png(picture(channels, most=65535), kind, 16)
    for depth in (1, 2, 4):
        yield f"grey {depth}", png(picture(1) >> (8 - depth), 0, depth)
    palette = rng.integers(0, 256, (16, 3)).astype(np.uint8)
    alphas = rng.integers(0, 256, 9).astype(np.uint8)
    indices = rng.integers(0, 16, (HEIGHT, WIDTH, 1)).astype(np.uint8)
    plte = chunk(b"PLTE", palette.tobytes())
    yield "palette 4", png(indices, 3, 4, plte)
    yield "palette 8", png(indices, 3, 8, plte)
    yield "palette with alpha", png(indices, 3, 8, plte + chunk(b"tRNS", alphas.tobytes()))
    yield "interlaced", png(picture(3), 2, 8, interlaced=True)
    yield "interlaced 16", png(picture(1, most=65535), 0, 16, interlaced=True)
    yield "one pixel", png(picture(3, 1, 1), 2, 8)
    yield "filtered", pillow(picture(3), format="PNG", optimize=True)
    yield "bytes after the end", png(picture(3), 2, 8) + b"more"
    yield "gamma", png(picture(3), 2, 8, chunk(b"gAMA", struct.pack(">I", 45455)))
    yield "text", png(picture(3), 2, 8, chunk(b"zTXt", b"k\0\0" + zlib.compress(b"x" * 10000)))


def hostile():
    jpeg = tf.io.encode_jpeg(picture(3)).numpy()
    whole = png(picture(3), 2, 8)
    yield "empty", b""
    yield "no image", b"this is no image at all"
    for part in (2, 3, 20, 200, len(jpeg) // 2, len(jpeg) - 40):
        yield f"jpeg cut at {part}", jpeg[:part]
    for part in (4, 8, 20, 33, 60, len(whole) // 2, len(whole) - 20):
        yield f"png cut at {part}", whole[:part]
    at = len(whole) // 2
    yield "png with a flipped bit", whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    yield "png larger than its data", png(picture(3), 2, 8, header=(WIDTH, HEIGHT + 9))
    yield "png of 2^31 pixels", png(picture(3), 2, 8, header=(1 << 20, 1 << 11))
    yield "png without a palette", png(picture(1) >> 4, 3, 4)
    sof = jpeg.index(b"\xff\xc0")
    huge = jpeg[: sof + 5] + b"\xff\xdc\xff\xdc" + jpeg[sof + 9 :]
    yield "jpeg of 2^32 pixels", huge
    yield "jpeg without height", jpeg[: sof + 5] + b"\0\0" + jpeg[sof + 7 :]
    yield "jpeg of no components", jpeg[: sof + 9] + b"\0" + jpeg[sof + 10 :]
    yield "jpeg without tables", jpeg[:2] + jpeg[sof:]


def decode(data, channels, dtype="uint8"):
    return tf.io.decode_image(data, channels, tf.as_dtype(dtype), expand_animations=False)


def cases():
    """Name, strings of each column, operators, function that returns TensorFlow's answer."""

    def decoding(data, channels, dtype, size):
        fields = {"input": "x", "channels": channels, "dtype": dtype, "size": size}
        return ({"x": [data]}, [("x", "decode_image", fields)])

    for name, data in jpegs():
        size = list(decode(data, 3).shape[:2])
        for channels in (1, 3):
            answer = lambda data=data, channels=channels: decode(data, channels)[None]
            yield (f"jpeg {name} to {channels}", *decoding(data, channels, "uint8", size), answer)
        # TensorFlow's default method is faster, and up to 6 of 255 off.
        answer = lambda data=data: tf.io.decode_jpeg(data, 3, dct_method="INTEGER_ACCURATE")[None]
        yield (f"accurate jpeg {name}", *decoding(data, 3, "uint8", size), answer)
    for name, data in pngs():
        size = list(decode(data, 3).shape[:2])
        for channels in (1, 3, 4):
            for dtype in ("uint8", "uint16"):
                answer = lambda data=data, channels=channels, dtype=dtype: decode(data, channels, dtype)[None]
                yield (f"png {name} to {channels} {dtype}", *decoding(data, channels, dtype, size), answer)
    for name, data in hostile():
        answer = lambda data=data: decode(data, 3)[None]
        yield (f"hostile {name}", *decoding(data, 3, "uint8", [HEIGHT, WIDTH]), answer)

    def numbers(array):
        shape = list(array.shape[1:])
        fields = {"input": "x", "dtype": array.dtype.name, "shape": shape, "little_endian": True}
        return {"x": [row.tobytes() for row in array]}, ("x", "decode_raw", fields)

    two = np.stack([picture(3), picture(3)])
    columns, first = numbers(two)
    for size, offset in (([10, 7], None), ([21, 19], None), ([9, 8], None), ([12, 5], [3, 14]), ([21, 1], [0, 18])):
        fields = {"input": "x", "size": size, **({"offset": offset} if offset else {})}
        top, left = offset or ((HEIGHT - size[0]) // 2, (WIDTH - size[1]) // 2)
        answer = lambda size=size, at=(top, left): tf.image.crop_to_bounding_box(two, *at, *size)
        yield f"crop {size} {offset}", columns, [first, ("x", "crop", fields)], answer
        if offset is None:
            answer = lambda size=size: tf.image.resize_with_crop_or_pad(two, *size)
            yield f"crop {size} middle", columns, [first, ("x", "crop", fields)], answer
    for axis, function in (("horizontal", tf.image.flip_left_right), ("vertical", tf.image.flip_up_down)):
        for channels, most in ((1, 255), (3, 255), (4, 255), (3, 65535), (1, 65535)):
            array = np.stack([picture(channels, most=most), picture(channels, most=most)])
            strings, decoded = numbers(array)
            fields = {"input": "x", "axis": axis, "probability": 1.0}
            answer = lambda array=array, function=function: function(array)
            name = f"flip {axis} {array.dtype.name} {channels}"
            yield name, strings, [decoded, ("x", "flip", fields)], answer
    for dtype in ("uint8", "uint16", "float32"):
        array = two.astype(dtype)
        strings, decoded = numbers(array)
        answer = lambda array=array: tf.transpose(array, [0, 3, 1, 2])
        yield f"layout {dtype} chw", strings, [decoded, ("x", "layout", {"input": "x", "to": "chw"})], answer
        array = np.ascontiguousarray(np.moveaxis(array, 3, 1))
        strings, decoded = numbers(array)
        answer = lambda array=array: tf.transpose(array, [0, 2, 3, 1])
        yield f"layout {dtype} hwc", strings, [decoded, ("x", "layout", {"input": "x", "to": "hwc"})], answer

    sizes = ([8, 8], [33, 26], [21, 19], [5, 30], [1, 1], [20, 18], [40, 3])
    for channels, dtype in ((1, "uint8"), (3, "uint8"), (4, "uint8"), (3, "uint16"), (3, "float32")):
        most = 65535 if dtype == "uint16" else 255
        array = picture(channels, most=most)[None].astype(dtype)
        strings, decoded = numbers(array)
        for method in ("nearest", "bilinear", "bicubic"):
            for antialias in (False, True):
                if method == "nearest" and antialias:
                    continue
                for size in sizes if channels == 3 and dtype == "uint8" else sizes[:3]:
                    fields = {"input": "x", "size": size, "method": method, "antialias": antialias}
                    function = lambda array=array, size=size, method=method, antialias=antialias: tf.image.resize(
                        array, size, method=method, antialias=antialias
                    )
                    name = f"resize {method}{' antialias' if antialias else ''} {dtype} {channels} {size}"
                    if dtype != "float32":
                        rounded = lambda function=function, dtype=dtype, most=most: tf.cast(
                            tf.clip_by_value(tf.round(function()), 0, most), dtype
                        )
                        yield f"{name} rounded", strings, [decoded, ("x", "resize", fields)], rounded
                    fields = {**fields, "dtype": "float32"}
                    in_float = lambda function=function: tf.cast(function(), tf.float32)
                    yield name, strings, [decoded, ("x", "resize", fields)], in_float

    # A chain as used in training: crop, flip, resize, channels first.
    data = png(picture(3), 2, 8)
    operators = [
        ("y", "decode_image", {"input": "x", "channels": 3, "dtype": "uint8"}),
        ("y", "crop", {"input": "y", "size": [16, 14], "offset": [3, 2]}),
        ("y", "flip", {"input": "y", "axis": "horizontal", "probability": 1.0}),
        ("y", "crop", {"input": "y", "size": [11, 9], "offset": [2, 3]}),
        ("y", "resize", {"input": "y", "size": [6, 8], "method": "bilinear", "antialias": True, "dtype": "float32"}),
        ("y", "layout", {"input": "y", "to": "chw"}),
    ]

    def chain():
        image = tf.image.crop_to_bounding_box(decode(data, 3), 3, 2, 16, 14)
        image = tf.image.crop_to_bounding_box(tf.image.flip_left_right(image), 2, 3, 11, 9)
        image = tf.image.resize(image, [6, 8], antialias=True)
        return tf.transpose(image, [2, 0, 1])[None]

    yield "resize chain", {"x": [data]}, operators, chain


def main():
    lines = []
    for name, columns, operators, answer in cases():
        try:
            tensor = answer()
            array = tensor.numpy()
            data = base64.b64encode(zlib.compress(array.tobytes(), 9)).decode()
            found = {"ok": {"dtype": tensor.dtype.name, "shape": list(array.shape), "bytes": data}}
        except (tf.errors.OpError, ValueError, TypeError) as error:
            found = {"error": message(error)}
        listed = [{"output": out, "operation": {kind: fields}} for out, kind, fields in operators]
        coded = {key: [base64.b64encode(one).decode() for one in strings] for key, strings in columns.items()}
        lines.append(json.dumps({"name": name, "columns": coded, "operators": listed, "answer": found}))
    path = pathlib.Path(__file__).parent / "images.json"
    text = ",\n".join(lines)
    path.write_text(f'{{"tensorflow": "{tf.__version__}", "cases": [\n{text}\n]}}\n')
    errors = [json.loads(line)["name"] for line in lines if "error" in json.loads(line)["answer"]]
    print(f"{len(lines)} cases, {path.stat().st_size} bytes; errors: {errors}")


if __name__ == "__main__":
    main()
