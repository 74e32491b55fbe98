"""Where the time of training goes, and what would be gained by mending it.

=================  ===========================================================
``report.py``      what was found: rates, stages, stalls, fixes, the verdict
``figures.py``     its figures in words: what text and page share
``text.py``        it as text, for a terminal
``page.py``        it as an HTML page: ``report.html.jinja``, filled in
``timeline.py``    the page's timeline: rows, stretches, ticks
=================  ===========================================================
"""
