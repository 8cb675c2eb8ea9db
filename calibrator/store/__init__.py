"""The SQL store: windows, samples, ledgers, positions, parameter versions.

Open a :class:`Store`; the modules beside it hold one kind of row each, as functions that take a connection
from ``store.read()`` or ``store.write()``, so that whatever belongs together is one transaction.
"""

from calibrator.store.errors import (
    ConflictError,
    DataRefusedError,
    FencedError,
    SchemaError,
    StaleReadError,
    StoreError,
    StoreUnavailableError,
)
from calibrator.store.store import Store

__all__ = [
    "ConflictError",
    "DataRefusedError",
    "FencedError",
    "SchemaError",
    "StaleReadError",
    "Store",
    "StoreError",
    "StoreUnavailableError",
]
