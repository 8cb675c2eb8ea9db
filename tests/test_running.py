"""What the long-running commands share."""

import signal

from calibrator.cli.running import stop_on_signal


def test_the_first_signal_becomes_an_event_and_the_second_has_its_usual_effect():
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signal() as stop:
        assert not stop.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) == before
