"""DeepSpec's record format (PR #63): one JSON line per round with logits and prefix labels."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from calibrator.core.labels import included, prefix_labels
from serving_adapter.contract import Rounds


def deepspec_lines(rounds: Rounds) -> Iterator[str]:
    """Render rounds as DeepSpec records, one line each, without line ends.

    ``logits`` and ``labels`` are ragged: they hold the verified positions only, for a position that was
    not verified has no label, and the format knows no other way to say so. A round without a verified
    position is left out. Extra keys (``request_id``, ``step_index``, ``temperature``, ``domain``) are
    those of DeepSpec's own files.

    >>> line = next(deepspec_lines(Rounds.build([[0.5, -1.0, 2.0]], [1], verified=[2])))
    >>> line[: line.index(', "request_id"')]
    '{"logits": [0.5, -1.0], "labels": [1, 0]'
    """
    labels = prefix_labels(rounds)
    counts = included(rounds, "keep").sum(axis=1)
    names = rounds.segment_names()
    for i, count in enumerate(counts.tolist()):
        if not count:
            continue
        yield json.dumps(
            {
                "logits": rounds.logits[i, :count].astype(np.float64).tolist(),
                "labels": labels[i, :count].tolist(),
                "request_id": int(rounds.request[i]),
                "step_index": int(rounds.step[i]),
                "temperature": float(rounds.sampling[i]),
                "domain": names[i],
            },
            allow_nan=False,
        )
