"""What consumes batches: training steps to measure with, and the clock to do it by.

script.py     a user's own loader and step, from ``train.py:build``
reference.py  the step of a reference model; one of a given length
models.py     the reference models
meter.py      time on the device, in synchronised windows
"""

from fastdata.steps.reference import ReferenceStep, SleepStep
from fastdata.steps.script import Step, is_script, run_script

__all__ = ["ReferenceStep", "SleepStep", "Step", "is_script", "run_script"]
