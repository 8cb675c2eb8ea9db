"""The peers' own code, from their released wheels: what we write must be what they read.

Nothing of theirs is stored in this repository. A wheel is downloaded once into .cache/wheels, the few files
that need only PyTorch and msgspec are unpacked into a temporary folder, and imported from there.
"""

import hashlib
import importlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

WHEELS = Path(__file__).parents[1] / ".cache" / "wheels"
SGLANG = "sglang-0.5.23-cp311-cp311-manylinux_2_34_x86_64.whl"
SGLANG_SHA256 = "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937"
SGLANG_FILES = (
    "sglang/benchmark/dspark_sts_fit.py",
    "sglang/srt/speculative/dspark_components/dspark_sps.py",
    "sglang/srt/speculative/dspark_components/dspark_sts.py",
)


class SGLang(NamedTuple):
    """Modules of SGLang 0.5.23."""

    sps: ModuleType
    sts: ModuleType
    fit: ModuleType


def sglang_wheel() -> Path:
    """Download the wheel once."""
    wheel = WHEELS / SGLANG
    if not wheel.exists():
        WHEELS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=WHEELS) as folder:
            command = [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
                *("--no-deps", "--only-binary=:all:", "--platform", "manylinux_2_34_x86_64"),
                *("--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"),
                *("--dest", folder, "sglang==0.5.23"),
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                pytest.fail(
                    f"cannot download sglang 0.5.23, whose loaders this test asks: {done.stderr[-500:]}"
                )
            (Path(folder) / SGLANG).replace(wheel)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != SGLANG_SHA256:
        pytest.fail(f"{wheel}: got SHA-256 {digest}, expected {SGLANG_SHA256}: delete it and try again")
    return wheel


@pytest.fixture(scope="session")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLang]:
    """SGLang's DSpark loaders and fitter."""
    with sglang_modules(tmp_path_factory.mktemp("sglang")) as modules:
        yield modules


@contextmanager
def sglang_modules(root: Path) -> Iterator[SGLang]:
    """Unpack SGLang's DSpark files below ``root`` and import them; they need PyTorch."""
    with zipfile.ZipFile(sglang_wheel()) as archive:
        for name in SGLANG_FILES:
            archive.extract(name, root)
            for folder in (root / name).relative_to(root).parents:
                if folder.name:
                    (root / folder / "__init__.py").touch()
    before = set(sys.modules)
    sys.path.insert(0, str(root))
    try:
        yield SGLang(
            sps=importlib.import_module("sglang.srt.speculative.dspark_components.dspark_sps"),
            sts=importlib.import_module("sglang.srt.speculative.dspark_components.dspark_sts"),
            fit=importlib.import_module("sglang.benchmark.dspark_sts_fit"),
        )
    finally:
        sys.path.remove(str(root))
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "sglang":
                del sys.modules[name]
