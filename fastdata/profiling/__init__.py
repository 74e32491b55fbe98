"""Where the time of training goes, and what would be gained by mending it.

=================  ===========================================================
``report.py``      what was found: rates, stages, stalls, fixes, the verdict
=================  ===========================================================
"""
