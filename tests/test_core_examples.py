"""The core is pure, and every module of it has an example that runs and prints what it says."""

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import calibrator.core

MODULES = [m.name for m in pkgutil.walk_packages(calibrator.core.__path__, "calibrator.core.") if not m.ispkg]

NOTHING_TO_RUN = {"calibrator.core.status": "a type alias"}

PURE = (
    *("__future__", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib", "itertools"),
    *("math", "numpy", "operator", "scipy", "sklearn", "typing"),
    *("calibrator.core", "serving_adapter.contract", "serving_adapter.step_cost"),
)
"""What the core may import: nothing here knows the time, a database, the network or the environment."""

IMPURE_CALLS = {"open", "input", "print", "eval", "exec", "__import__"}
IMPURE_OF_NUMPY = {
    *("datetime64", "load", "loadtxt", "genfromtxt", "fromfile", "memmap", "save", "savez", "savetxt")
}


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    failed, attempted = doctest.testmod(importlib.import_module(name))
    assert failed == 0
    assert (attempted == 0) == (name in NOTHING_TO_RUN), "one example per module, or a reason why not"


@pytest.mark.parametrize(
    "path", sorted(Path(calibrator.core.__path__[0]).rglob("*.py")), ids=lambda p: p.stem
)
def test_the_core_reads_no_clock_and_no_database(path):
    assert impurities(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "import os",
        "import numpy as np, datetime",
        "from datetime import datetime",
        "from sqlalchemy import select",
        "import redis.asyncio",
        "from calibrator.store import runs",
        "from calibrator import store",
        "from serving_adapter.ports import Clock",
        "from ..store import runs",
        "def f():\n    from time import monotonic",
        "np.datetime64('now')",
        "np.load('rows.npz')",
        "open('rows.txt')",
        "__import__('time')",
        "np.random.default_rng()",
        "np.random.random(3)",
    ],
)
def test_what_is_not_pure_is_found(line):
    assert len(impurities(f"import numpy as np\n{line}\n")) == 1


def impurities(source: str) -> list[str]:
    """Name each import and call in ``source`` through which something but the arguments could be read."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [f"line {node.lineno}: import {n.name}" for n in names if not _pure(n.name)]
            case ast.ImportFrom(module=module, names=names, level=level):
                full = [f"{'.' * level}{module}.{n.name}" for n in names]
                if level or not (_pure(str(module)) or all(map(_pure, full))):
                    found.append(f"line {node.lineno}: from {'.' * level}{module} import")
            case ast.Call(func=called) if _impure_call(ast.unparse(called), bool(node.args or node.keywords)):
                found.append(f"line {node.lineno}: {ast.unparse(called)}()")
    return found


def _pure(module: str) -> bool:
    return any(module == pure or module.startswith(f"{pure}.") for pure in PURE)


def _impure_call(name: str, arguments: bool) -> bool:
    first, _, rest = name.partition(".")
    if first not in ("np", "numpy"):
        return name in IMPURE_CALLS
    module, _, function = rest.rpartition(".")
    if module == "random":  # a generator without a seed, or the one that everybody shares
        return function.islower() and not (function == "default_rng" and arguments)
    return rest in IMPURE_OF_NUMPY
