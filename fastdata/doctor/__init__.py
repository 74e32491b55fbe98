"""Advice on a training step, each piece tried on the user's own script.

    script --session--> watching --> advice finds ----------.
        \\                                                     examining --> DoctorReport
         '--sessions--> the script, and with advice followed -'
                        trials: in turns; numerics

==================  ============================================================
``examining.py``    `examine`: the whole examination, step by step
``script.py``       a script, started as its user starts it
``processes.py``    its processes, seen from the parent
``session.py``      one of its processes, which stops at steps of the script
``stepless.py``     scripts in which doctor sees no step
``writes.py``       files that the script writes: they go elsewhere
``replaying.py``    its batches: new ones, or a few again and again
``watching.py``     hooks: its models, optimisers, and the events of its steps
``seen.py``         what these saw, for the advice
``first_steps.py``  its first steps: metrics, copies, waits, memory, attention
``sources.py``      its source text, for code that a run may not reach
``contract.py``     a piece of advice, and its findings
``advice/``         the advice
``explaining.py``   explanations of advice, from ``advice.md``
``trials.py``       the script with and without advice, measured in turns
``rows.py``         the numbers and verdicts of what is tried
``running.py``      a process that runs some steps, and waits
``numerics.py``     the effect of advice on gradients
``report.py``       the report: data, verdict, JSON
``text.py``         the report as text for a terminal, and as an HTML page
==================  ============================================================
"""

from fastdata.doctor.examining import examine
from fastdata.doctor.report import DoctorReport, Row
from fastdata.doctor.script import Script, script_of
from fastdata.doctor.text import render_text

__all__ = ["DoctorReport", "Row", "Script", "examine", "render_text", "script_of"]
