"""What consumes batches: training steps to measure with, and the clock to do it by.

================  ============================================================
``script.py``     a user's own loader and step, from ``train.py:build``
``simulated.py``  a step of a given length
``reference.py``  the step of a reference model
``models.py``     those by name: ``resnet.py``, ``vit.py``
``meter.py``      time on the device, in synchronised windows
================  ============================================================
"""

from __future__ import annotations

from fastdata.steps.reference import ReferenceStep
from fastdata.steps.script import Step, is_script, run_script
from fastdata.steps.simulated import SleepStep

__all__ = ["ReferenceStep", "SleepStep", "Step", "is_script", "run_script"]
