"""Programs that use a GPU, with the stand-in for its driver (worker/device/tests/standin)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

#: Beginning of each program.
PRELUDE = """
import os, sys, logging
logging.basicConfig()
import numpy as np
import shardfeed as sf
import device_consumer as dc

FEATURES = {
    "id": sf.FixedLenFeature((), "int64"),
    "image": sf.FixedLenFeature((2, 3), "float32"),
    "name": sf.FixedLenFeature((), "string"),
    "list": sf.RaggedFeature("int64"),
}
if "padded" in sys.argv:
    FEATURES["list"] = sf.FixedLenSequenceFeature((), "int64", allow_missing=True)

def loader(then=lambda source: source, **options):
    source = then(sf.source(sys.argv[1], FEATURES))
    return sf.Loader(source, **({"batch_size": 4, "seed": 7, "shuffle_window": 16} | options))

def numbers(batch):
    return [name for name in batch if isinstance(batch[name], np.ndarray)]
"""


def build(folder: Path) -> Path:
    """Builds the stand-in in the folder."""
    source = ROOT / "worker/device/tests/standin/libcuda.c"
    flags = ["-shared", "-fPIC", "-O1", "-pthread", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["cc", *flags, "-o", folder / "libcuda.so.1", source], check=True)
    # This name is tried first, and the host may have a GPU.
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    return folder


def environment(standin: Path, report: Path) -> dict[str, str]:
    """Returns the variables with which a program finds it."""
    modules = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    return {"LD_LIBRARY_PATH": str(standin), "STANDIN_REPORT": str(report), "PYTHONPATH": modules}


class Ended:
    """A program that has ended, and the stand-in's report."""

    def __init__(self, folder: Path, standin: Path, files: str, code: str, *more: str, **variables: str) -> None:
        report = folder / "report.json"
        command = [sys.executable, "-c", PRELUDE + code, files, *more]
        env = os.environ | environment(standin, report) | variables
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        self.output = done.stdout + done.stderr
        assert done.returncode == 0, self.output
        self.report: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {}

    def is_clean(self) -> None:
        """Verifies that there were no violations and no leaks."""
        assert self.report["violation"] == "", self.output
        assert not any(self.report["live"].values()), self.report["live"]
