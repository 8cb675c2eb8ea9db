"""Ragged batches: the tokens of several requests one after the other, every request its own number.

Linear layers run over exactly the ``B`` tokens of a batch, which is what makes a trimmed draft cheaper.
Only attention lays them out as ``[R, longest, ...]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch:
    """Consecutive cache rows, each with a stretch of new tokens.

    Build one with :meth:`build`. ``tokens``, ``positions`` (absolute), ``rows`` (of the cache) and
    ``slots`` (place in the padded layout) have shape ``[B]``; ``offsets`` (host side) tells where each
    row's tokens begin, ``R + 1`` numbers.
    """

    first_row: int
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    offsets: tuple[int, ...]
    tokens: Tensor
    positions: Tensor
    rows: Tensor
    slots: Tensor
    longest: int
    context: int

    @classmethod
    def build(
        cls,
        tokens: Sequence[Sequence[int]],
        starts: Sequence[int],
        device: torch.device,
        first_row: int = 0,
    ) -> PackedBatch:
        """Pack the new tokens of rows ``first_row, first_row + 1, ...``.

        Parameters
        ----------
        tokens
            New tokens of every row, at least one in all; a row may have none.
        starts
            Position of the first new token of every row: so many the cache holds already.
        device
            Where the tensors go.
        first_row
            Cache row of the first request.
        """
        lengths = tuple(len(row) for row in tokens)
        longest = max(lengths)
        offsets = [0]
        flat: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        slots: list[int] = []
        for index, (row, start, length) in enumerate(zip(tokens, starts, lengths, strict=True)):
            flat.extend(row)
            positions.extend(range(start, start + length))
            rows.extend([first_row + index] * length)
            slots.extend(range(index * longest, index * longest + length))
            offsets.append(len(flat))
        packed = torch.tensor([flat, positions, rows, slots], dtype=torch.long).to(device)
        return cls(
            first_row=first_row,
            starts=tuple(starts),
            lengths=lengths,
            offsets=tuple(offsets),
            tokens=packed[0],
            positions=packed[1],
            rows=packed[2],
            slots=packed[3],
            longest=longest,
            context=max(start + length for start, length in zip(starts, lengths, strict=True)),
        )

    def __len__(self) -> int:
        return self.offsets[-1]

    @property
    def requests(self) -> int:
        """Rows of the batch."""
        return len(self.lengths)

    @property
    def even(self) -> bool:
        """Whether every row has equally many tokens: then nothing needs padding."""
        return len(self) == self.requests * self.longest

    def pad(self, packed: Tensor) -> Tensor:
        """Lay out ``[B, ...]`` as ``[R, longest, ...]``; places without a token hold zeros."""
        shape = (self.requests, self.longest, *packed.shape[1:])
        if self.even:
            return packed.reshape(shape)
        padded = packed.new_zeros((self.requests * self.longest, *packed.shape[1:]))
        padded.index_copy_(0, self.slots, packed)
        return padded.view(shape)

    def unpad(self, padded: Tensor) -> Tensor:
        """Take the ``[B, ...]`` tokens out of ``[R, longest, ...]`` again."""
        flat = padded.reshape(self.requests * self.longest, *padded.shape[2:])
        return flat if self.even else flat.index_select(0, self.slots)

    def causal_mask(self, groups: int, dtype: torch.dtype) -> Tensor:
        """Additive mask ``[R, 1, groups * longest, context]``: position ``p`` attends to ``0 .. p``.

        What the cache holds beyond ``p`` (of drafts that were rejected) is never seen: rolling back
        is forgetting the length.
        """
        positions = self.pad(self.positions)  # padding attends to position 0: its output is not used
        keys = torch.arange(self.context, device=positions.device)
        mask = torch.zeros((self.requests, self.longest, self.context), dtype=dtype, device=positions.device)
        mask.masked_fill_(keys > positions[:, :, None], float("-inf"))
        return mask.repeat(1, groups, 1)[:, None]
