"""Errors of the wire contracts: each names the field and the value that broke it."""

from __future__ import annotations

_SHOWN = 80


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
        shown = repr(value)
        if len(shown) > _SHOWN:
            shown = shown[: _SHOWN - 3] + "..."
        super().__init__(f"{field}: got {shown}, expected {expected}")
        self.field = field
        self.value = value
        self.expected = expected
