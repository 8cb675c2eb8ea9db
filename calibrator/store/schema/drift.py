"""Tables of drift, of step costs and of the throughput ledger."""

from __future__ import annotations
