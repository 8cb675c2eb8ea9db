"""Every example in the docstrings of the core runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest

import calibrator.core

MODULES = [m.name for m in pkgutil.walk_packages(calibrator.core.__path__, "calibrator.core.") if not m.ispkg]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0
