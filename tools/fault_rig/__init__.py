"""Real processes that die on purpose, and the books that show that nothing was lost or counted twice.

:class:`Rig` is the whole placement: engines that keep exact ledgers of their own, sidecars, collectors and
services, each an operating-system process that can be killed, frozen and started again.
"""

from tools.fault_rig.pod import BootBooks, Pod
from tools.fault_rig.process import RigProcess
from tools.fault_rig.rig import GAMMA, Rig

__all__ = ["GAMMA", "BootBooks", "Pod", "Rig", "RigProcess"]
