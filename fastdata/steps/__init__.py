"""What consumes batches: training steps to measure with, and the clock to do it by.

script.py  a user's own loader and step, from ``train.py:build``
models.py  reference models and their training step; a step of a given length
meter.py   time on the device, in synchronised windows
"""

from fastdata.steps.models import ReferenceStep, SleepStep
from fastdata.steps.script import Step, is_script, is_script_target, run_script

__all__ = ["ReferenceStep", "SleepStep", "Step", "is_script", "is_script_target", "run_script"]
