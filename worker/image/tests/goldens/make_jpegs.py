"""Records TensorFlow's results for JPEGs of every kind, intact and damaged, in `jpegs.json.zlib`.

    python make_jpegs.py FOLDER   # needs tensorflow (made with 2.21) and pillow

FOLDER has libjpeg-turbo's `cjpeg`, `djpeg` and `jpegtran` (made with 3.1.0). The picture is
generated here. Each answer is the beginning of the SHA-256 of the pixels, or null where TensorFlow
rejects the file; `warned`: libjpeg printed a warning in TensorFlow's process.

TensorFlow 2.21 has libjpeg-turbo 2.1.4, whose estimate of missing scans was corrected in 2.1.5.
Where a progressive file lacks scans and the two differ, `newer` is the result of `djpeg`.
"""

import hashlib
import io
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import zlib

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf
from PIL import Image

TOOLS = pathlib.Path(sys.argv[1])
HEIGHT, WIDTH = 29, 43


def picture(height=HEIGHT, width=WIDTH, channels=3):
    """Waves, an edge in each colour and some noise."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    noise = np.random.default_rng(height * 100 + width).normal(0, 6, (height, width, channels))
    planes = [120 + 90 * np.sin(x / (4 + c) + y / (7 - c)) + 40 * (x + (c - 1) * y > 12 * c + 9) for c in range(channels)]
    return np.clip(np.stack(planes, -1) + noise, 0, 255).astype(np.uint8)


def run(tool, data, *arguments):
    return subprocess.run([TOOLS / tool, *arguments], input=data, stdout=subprocess.PIPE, check=True).stdout


def cjpeg(*arguments, height=HEIGHT, width=WIDTH):
    return run("cjpeg", b"P6 %d %d 255\n" % (width, height) + picture(height, width).tobytes(), *arguments)


def jpegtran(data, *arguments):
    return run("jpegtran", data, *arguments)


def scans(text):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        return cjpeg("-optimize", "-scans", file.name)


def cmyk():
    out = io.BytesIO()
    Image.fromarray(picture(channels=4), "CMYK").save(out, format="JPEG", quality=80)
    return out.getvalue()


def segments(data):
    """Marker, start and end of each segment; the last one is that of the first scan."""
    at = 2
    while True:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        yield data[at + 1], at, end
        if data[at + 1] == 0xDA:
            return
        at = end


def without(data, *markers):
    cuts = [(begin, end) for marker, begin, end in segments(data) if marker in markers]
    for begin, end in reversed(cuts):
        data = data[:begin] + data[end:]
    return data


#: Markers of frames: sequential, progressive, and both by arithmetic coding.
FRAMES = (0xC0, 0xC1, 0xC2, 0xC9, 0xCA)


def patched(data, markers, offset, value):
    begin = next(begin for marker, begin, _ in segments(data) if marker in markers)
    return data[: begin + offset] + bytes([value]) + data[begin + offset + 1 :]


def scan_ends(data):
    """Returns the end of each scan's data."""
    at, in_scan, ends = 2, False, []
    while at + 1 < len(data):
        if data[at] != 0xFF or data[at + 1] in (0, 0xFF, *range(0xD0, 0xD8)):
            at += 1
            continue
        if in_scan:
            ends.append(at)
        if data[at + 1] == 0xD9:
            return ends
        in_scan = data[at + 1] == 0xDA
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")


def samplings():
    """Returns all samplings that the encoder accepts: integer ratios, at most ten blocks in total.

    The two chroma components are sampled equally, and in some cases differently.
    """
    sides = list(itertools.product((1, 2, 3, 4), repeat=2))
    for luma, blue in itertools.product(sides, repeat=2):
        for red in (blue, (1, 1), (luma[0], 1)):
            parts = (luma, blue, red)
            is_whole = all(max(way) % side == 0 for way in zip(*parts) for side in way)
            if is_whole and sum(across * down for across, down in parts) <= 10:
                yield ",".join("%dx%d" % side for side in parts)


COMMON = {"4:4:4": "1x1", "4:2:2": "2x1", "4:2:0": "2x2", "4:4:0": "1x2", "4:1:1": "4x1", "4:1:0": "4x2", "4:4:1": "1x4"}
WAYS = {
    "baseline": [],
    "progressive": ["-progressive"],
    "arithmetic": ["-arithmetic"],
    "progressive arithmetic": ["-progressive", "-arithmetic"],
}


def whole():
    for sampling in dict.fromkeys(samplings()):
        for way in ("-optimize", "-progressive"):
            yield f"{sampling} {way}", cjpeg(way, "-sample", sampling)
    for (name, sampling), (way, options) in itertools.product(COMMON.items(), WAYS.items()):
        base = cjpeg("-sample", sampling)
        yield f"{name} {way}", jpegtran(base, *options)
        for turn in (["-rotate", "90"], ["-rotate", "180"], ["-transverse"]):
            yield f"{name} {way} {' '.join(turn)}", jpegtran(base, *options, *turn)
        for restart in ("1", "1B", "3B"):
            yield f"{name} {way} restart {restart}", jpegtran(base, *options, "-restart", restart)
        yield f"{name} {way} to grey", jpegtran(base, *options, "-grayscale")
    for way, options in WAYS.items():
        for name, base in (("cmyk", cmyk()), ("rgb", cjpeg("-rgb")), ("grey", cjpeg("-grayscale"))):
            yield f"{name} {way}", jpegtran(base, *options)
        yield f"ycck {way}", jpegtran(patched(cmyk(), [0xEE], 15, 2), *options)
        yield f"cmyk {way} not by Adobe", jpegtran(without(cmyk(), 0xEE), *options)
        for factors in (0x22, 0x21, 0x14, 0x33):
            yield f"grey {way} sampled {factors:#x}", patched(jpegtran(cjpeg("-grayscale"), *options), FRAMES, 11, factors)
    for height, width in ((1, 1), (1, 40), (40, 1), (2, 2), (3, 3), (4, 5), (5, 4), (8, 8), (16, 16), (17, 9), (9, 17), (33, 65)):
        for name, sampling in COMMON.items():
            yield f"{height}x{width} {name}", cjpeg("-optimize", "-sample", sampling, height=height, width=width)
    for quality in ("1", "10", "50", "95", "100"):
        for way in ("-optimize", "-progressive"):
            yield f"quality {quality} {way}", cjpeg(way, "-quality", quality)
    yield "one scan for each colour", scans("0;1;2;")
    yield "chroma together", scans("0;1 2;")
    yield "spectral selection only", scans("0 1 2: 0-0, 0, 0; 0: 1-63, 0, 0; 1: 1-63, 0, 0; 2: 1-63, 0, 0;")
    yield "three samples of chroma for two of luma", patched(cjpeg("-sample", "2x1"), FRAMES, 14, 0x31)
    yield "12 bits", cjpeg("-precision", "12")
    yield "lossless", cjpeg("-lossless", "1")
    yield "without tables for Huffman", without(cjpeg(), 0xC4)


def damaged():
    random_ = random.Random(5)
    for name, sampling in {"4:2:0": "2x2", "4:4:4": "1x1", "4:2:2": "2x1"}.items():
        for end in scan_ends(cjpeg("-progressive", "-sample", sampling)):
            yield f"{name} progressive, scans cut at {end}", cjpeg("-progressive", "-sample", sampling)[:end] + b"\xff\xd9"
    for end in scan_ends(cjpeg("-progressive", "-grayscale")):
        yield f"grey progressive, scans cut at {end}", cjpeg("-progressive", "-grayscale")[:end] + b"\xff\xd9"
    bases = {f"{name} {way}": jpegtran(cjpeg("-sample", COMMON[name]), "-optimize", *WAYS[way])
             for name in ("4:2:0", "4:4:4") for way in WAYS}
    bases["restarts"] = cjpeg("-optimize", "-restart", "2B")
    bases["grey"] = cjpeg("-optimize", "-grayscale")
    bases["cmyk"] = cmyk()
    bases["scans"] = scans("0;1;2;")
    for name, base in bases.items():
        *_, (_, _, data) = segments(base)
        yield f"{name}, more after the end", base + b"more"
        yield f"{name}, more before the end", base[:-2] + b"more" + base[-2:]
        yield f"{name}, fill bytes before the end", base[:-2] + b"\xff\xff" + base[-2:]
        for cut in (1, 2, 3, 4, 6, 10, 30, (len(base) - data) // 2, len(base) - data):
            yield f"{name}, {cut} bytes fewer", base[:-cut]
            yield f"{name}, {cut} bytes fewer and an end", base[:-cut] + b"\xff\xd9"
        yield f"{name}, a second image", base[:-2] + base[2:]
        yield f"{name}, an unknown segment before the end", base[:-2] + b"\xff\xe5\x00\x04ab" + base[-2:]
        yield f"{name}, a cut segment before the end", base[:-2] + b"\xff\xe5\x00\x40ab"
        yield f"{name}, an illegal marker before the end", base[:-2] + b"\xff\x02" + base[-2:]
        for number in range(24):
            broken = bytearray(base)
            for _ in range(random_.choice((1, 1, 2, 5))):
                at = random_.randrange(data, len(base))
                if random_.random() < 0.6:
                    broken[at] ^= 1 << random_.randrange(8)
                elif random_.random() < 0.5:
                    del broken[at]
                else:
                    broken.insert(at, random_.choice((0xFF, 0x00, 0xD0, random_.randrange(256))))
            yield f"{name}, damaged {number}", bytes(broken)
        for number in range(12):
            at = random_.randrange(2, data)
            yield f"{name}, header damaged at {at}", base[:at] + bytes([random_.randrange(256)]) + base[at + 1 :]


def asked(data, channels):
    """Returns TensorFlow's pixels, and its output on stderr."""
    with tempfile.TemporaryFile() as said:
        stderr = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            pixels = tf.io.decode_jpeg(data, channels, dct_method="INTEGER_ACCURATE").numpy()
        except tf.errors.OpError:
            pixels = None
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        said.seek(0)
        return pixels, said.read()


def newer(data, channels):
    """Digest of a newer libjpeg-turbo's pixels, which follow three header lines in its output."""
    colors = "-grayscale" if channels == 1 else "-rgb"
    done = subprocess.run([TOOLS / "djpeg", "-dct", "int", "-pnm", colors], input=data, capture_output=True)
    return hashlib.sha256(done.stdout.split(b"\n", 3)[3]).hexdigest()[:16]


def main():
    cases = []
    for name, data in itertools.chain(whole(), damaged()):
        case = {"name": name, "jpeg": data.hex()}
        for channels, key in ((1, "grey"), (3, "rgb")):
            pixels, said = asked(data, channels)
            case[key] = None
            if pixels is not None and pixels.size <= 1 << 16:
                digest = hashlib.sha256(pixels.tobytes()).hexdigest()[:16]
                case[key] = {"size": pixels.shape[:2], "sha256": digest, "warned": bool(said)}
                lacks_scans = "progressive" in name and ("scans cut" in name or "an end" in name)
                if lacks_scans and newer(data, channels) != digest:
                    case[key]["newer"] = newer(data, channels)
            elif pixels is not None:
                break
        else:
            cases.append(case)
    text = ",\n".join(map(json.dumps, cases))
    document = f'{{"tensorflow": "{tf.__version__}", "cases": [\n{text}\n]}}\n'
    path = pathlib.Path(__file__).parent / "jpegs.json.zlib"
    path.write_bytes(zlib.compress(document.encode(), 9))
    count = lambda test: sum(test(case["rgb"]) for case in cases)
    print(f"{len(cases)} cases, {path.stat().st_size} bytes; to colours: {count(lambda a: a is None)} refused, "
          f"{count(lambda a: a is not None and a['warned'])} with a warning")


if __name__ == "__main__":
    main()
