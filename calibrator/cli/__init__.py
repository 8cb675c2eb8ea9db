"""The composition root: the ``dspark-calibrator`` command."""
