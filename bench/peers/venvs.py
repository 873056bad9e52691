"""The contenders' Python environments, each in its own folder, created when missing.

    python bench/peers/venvs.py target/bench-peers plots     # prints the path of its Python
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

#: torch from PyPI is built for CUDA, and does not load without the libraries listed here. The
#: omitted ones (mainly triton) are not needed on a CPU.
TORCH = [
    "filelock", "typing-extensions>=4.13", "setuptools>=77", "sympy", "networkx", "jinja2", "fsspec",
    "cuda-toolkit[cublas,cudart,cufft,cufile,cupti,cusparse,nvjitlink,nvrtc]==13.2.2",
    "nvidia-cudnn-cu13==9.26.0.51", "nvidia-cusparselt-cu13==0.8.1",
    "nvidia-nccl-cu13==2.30.7", "nvidia-nvshmem-cu13==3.7.2",
]  # fmt: skip

#: Name -> calls of `pip install`.
VENVS: dict[str, list[list[str]]] = {
    "tensorflow": [["tensorflow-cpu>=2.19,<2.22", "pillow"]],
    "dali": [["nvidia-dali-cuda120==2.4.0", "numpy"]],
    "torch": [
        ["--no-deps", "torch==2.15.0", "torchvision==0.29.2"],
        [*TORCH, "numpy", "pillow"],
        ["webdataset==1.0.2", "tfrecord==1.14.6", "simplejpeg==1.9.0", "opencv-python-headless==5.0.0.93"],
    ],
    "plots": [["matplotlib>=3.10,<4"]],
}

#: Module that must load for a venv to be usable.
IMPORTS = {
    "tensorflow": "tensorflow",
    "dali": "nvidia.dali",
    "torch": "torch, torchvision.io, webdataset, tfrecord.reader, simplejpeg, cv2",
    "plots": "matplotlib",
}


def python(home: Path, name: str) -> Path:
    """Returns the Python of an environment, which is created if it is incomplete.

    Raises OSError with the output of pip.
    """
    folder = home / "venvs" / name
    interpreter = folder / "bin/python"
    asked = hashlib.sha256(repr((VENVS[name], IMPORTS[name])).encode()).hexdigest()
    mark = folder / ".installed"
    if mark.exists() and mark.read_text() == asked:
        return interpreter
    print(f"installing {name} into {folder}", file=sys.stderr, flush=True)
    if not interpreter.exists():
        call([sys.executable, "-m", "venv", str(folder)])
    for packages in VENVS[name]:
        call([str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
    call([str(interpreter), "-c", f"import {IMPORTS[name]}"])
    mark.write_text(asked)
    return interpreter


def call(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command[:6])}: {done.stdout.strip()[-400:]}")


if __name__ == "__main__":
    try:
        print(python(Path(sys.argv[1]).resolve(), sys.argv[2]))
    except OSError as problem:
        sys.exit(f"error: {problem}")
