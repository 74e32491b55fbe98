"""Advice on a training step, each piece tried on the user's own script.

    script --session--> watching --> advice finds ----------.
        \\                                                     examining --> DoctorReport
         '--sessions--> the script, and with advice followed -'
                        trials: in turns; numerics

==================  ============================================================
``examining.py``    `examine`: all of it, in order
``script.py``       a script as its user starts it
``processes.py``    its processes, as the parent has them
``session.py``      one of them: runs the script, and stops at its steps
``writes.py``       what it may write: nothing of the user's
``replaying.py``    its batches: as they come, or some again and again
``watching.py``     its models, optimisers, and the events of its steps
``first_steps.py``  what is followed in its first steps: metrics, copies, waits, memory
``contract.py``     what a piece of advice is
``advice/``         the advice
``ranks.py``        several ranks of a script, watched at once
``trials.py``       the script with and without, measured in turns
``numerics.py``     what following advice does to gradients
``report.py``       the report: data, JSON, text
``page.py``         the report as an HTML page: ``report.html.jinja``, filled in
==================  ============================================================
"""

from fastdata.doctor.examining import compare_ranks, examine
from fastdata.doctor.report import DoctorReport, Row, render_text
from fastdata.doctor.script import Script, script_of

__all__ = ["DoctorReport", "Row", "Script", "compare_ranks", "examine", "render_text", "script_of"]
