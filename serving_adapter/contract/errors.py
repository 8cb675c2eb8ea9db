"""Errors of the wire contracts: each names the field and the value that broke it."""

from __future__ import annotations

import reprlib

_SHOWN = 80

# Hostile values (a million characters, a thousand brackets) are shown without being written out first.
_short = reprlib.Repr()
_short.maxlevel = 3
_short.maxstring = _short.maxother = _SHOWN


class ContractError(ValueError):
    """A message or document that does not keep the contract.

    Parameters
    ----------
    field
        Name of the field as it stands on the wire, e.g. ``"accepted"``.
    value
        The value that was found; long values are shortened in the message.
    expected
        What the contract asks for, in words that follow "expected".
    """

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field}: got {_show(value)}, expected {expected}")
        self.field = field
        self.value = value
        self.expected = expected


def _show(value: object) -> str:
    if isinstance(value, bytes | str):
        value = value[: _SHOWN + 1]
    try:
        shown = _short.repr(value) if isinstance(value, list | dict) else repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits
        return f"a very large {type(value).__name__}"
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."
