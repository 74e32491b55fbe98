"""What code and data are, as plain JSON that is the same in every process: or nothing.

A tuned result holds for the transforms it was measured with.  To compare those of two
processes `describe` goes through an object down to plain values: for an object its class
and its attributes, for a function its byte code, constants, defaults, closure, and the
globals that it names.  No ``repr`` is asked, in which addresses stand.

What cannot be told for sure raises `UndescribableError`: nobody is to trust a guess.

================================  ==================================================
plain values, containers, dtypes  themselves
arrays and tensors on the CPU     dtype, shape, hash of the values
random generators                 their type: what is drawn does not change how fast
functions and classes             name, and code down to what has a version
modules, installed packages       name and version
================================  ==================================================

================  ===========================================================
``describer.py``  `describe`: goes through an object, and remembers what it met
``values.py``     containers, arrays, tensors
``code.py``       functions, classes, modules
``objects.py``    any other object: its class and attributes
``naming.py``     names and versions; what is refused
================  ===========================================================
"""

from __future__ import annotations

from fastdata.tuning.describing.describer import describe
from fastdata.tuning.describing.naming import UndescribableError, named

__all__ = ["UndescribableError", "describe", "named"]
