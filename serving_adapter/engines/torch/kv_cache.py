"""Keys and values of running requests, one row each, in one block of memory that grows."""

from __future__ import annotations

import torch
from torch import Tensor

_FIRST_CAPACITY = 256


class RowCache:
    """Keys and values by layer, row and absolute position.

    Rows in use are kept together at the front, so that the rows of a batch are a view and no copy. A
    position is overwritten when it is processed again; whoever reads masks what lies beyond its own.

    Parameters
    ----------
    layers, rows, heads, head_dim
        Sizes; ``heads`` counts key and value heads.
    limit
        Most positions a row may come to hold.
    dtype, device
        Of the tensors.
    """

    def __init__(
        self,
        *,
        layers: int,
        rows: int,
        heads: int,
        head_dim: int,
        limit: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.limit = limit
        capacity = min(_FIRST_CAPACITY, limit)
        # Layer, key or value, row, head, position, dimension.
        self._store = torch.zeros((layers, 2, rows, heads, capacity, head_dim), dtype=dtype, device=device)

    @property
    def capacity(self) -> int:
        """Positions that fit without growing."""
        return int(self._store.shape[4])

    def reserve(self, positions: int) -> None:
        """Make room for that many positions in every row.

        Raises
        ------
        ValueError
            More than the limit.
        """
        if positions <= self.capacity:
            return
        if positions > self.limit:
            raise ValueError(f"context: got {positions} positions, expected at most {self.limit}")
        capacity = self.capacity
        while capacity < positions:
            capacity *= 2
        shape = list(self._store.shape)
        shape[4] = min(capacity, self.limit)
        grown = self._store.new_zeros(shape)
        grown[..., : self.capacity, :] = self._store
        self._store = grown

    def write(self, layer: int, rows: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values ``[tokens, heads, dim]`` at ``rows`` and ``positions``, ``[tokens]`` each."""
        self._store[layer, 0][rows, :, positions] = keys
        self._store[layer, 1][rows, :, positions] = values

    def view(self, layer: int, first_row: int, rows: int, positions: int) -> tuple[Tensor, Tensor]:
        """Keys and values ``[rows, heads, positions, dim]`` from position 0 on, without a copy."""
        both = self._store[layer, :, first_row : first_row + rows, :, :positions]
        return both[0], both[1]

    def window(self, layer: int, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values ``[R, heads, W, dim]`` at ``positions`` ``[R, W]`` of ``rows`` ``[R]``."""
        keys = self._store[layer, 0][rows[:, None], :, positions]
        values = self._store[layer, 1][rows[:, None], :, positions]
        return keys.transpose(1, 2), values.transpose(1, 2)

    def move(self, source: int, destination: int, positions: int) -> None:
        """Copy the first positions of one row over another."""
        self._store[:, :, destination, :, :positions] = self._store[:, :, source, :, :positions]
