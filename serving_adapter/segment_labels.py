"""The segment labels of one engine: a bounded dictionary, whatever clients put into their requests."""

from __future__ import annotations

DEFAULT_LABEL = "default"
OTHER = "other"
MAX_LABELS = 64


class SegmentLabels:
    """Labels by index, first come first served; the last place is kept for ``other``.

    ``names`` only grows, up to 64 entries. Labels beyond that are not remembered.
    """

    def __init__(self) -> None:
        self.names = [DEFAULT_LABEL]
        self.known = {DEFAULT_LABEL: 0}

    def enter(self, name: str) -> int:
        """Index of a label, entered if it is new and there is room, else that of ``other``.

        >>> labels = SegmentLabels()
        >>> [labels.enter(f"tenant {i}") for i in range(100)][60:66], labels.names[-1]
        ([61, 62, 63, 63, 63, 63], 'other')

        Raises
        ------
        ValueError
            Not a label of 1 to 128 characters.
        """
        index = self.known.get(name)
        if index is not None:
            return index
        if not name or len(name) > 128:
            raise ValueError(f"segment: got {name[:40]!r}, expected a label of 1 to 128 characters")
        name.encode("utf-8")  # halves of surrogate pairs: refused before anything is entered
        if len(self.names) >= MAX_LABELS - 1 and name != OTHER:
            return self.enter(OTHER)
        self.known[name] = len(self.names)
        self.names.append(name)
        return self.known[name]
