"""Where the time of training goes, and what would be gained by mending it.

    loader, step --rates--> three rates -----------.
                 --packed, stock--> stages --model-+--verdict, fixes--> ProfileReport
                 --stalls--> places in the step ---'

=================  ===========================================================
``profiler.py``    `fastdata.profile`: all of it, in order
``subject.py``     what is profiled, and on what
``source.py``      any loader as an endless source of batches
``rates.py``       the real loader, a cached host batch, cached device batches
``batches.py``     batches that are kept
``packed.py``      the stages of a loader of packed data
``recorded.py``    its data and transforms, as things that take times
``stock.py``       the stages of a stock DataLoader
``hooks.py``       times of files, image libraries and transforms of datasets
``recorder.py``    a stop watch that knows what is being done
``lines.py``       a thread that looks where another one is
``where.py``       which line is the user's
``parts.py``       what measuring stages gives
``stalls.py``      what in a step makes a device wait
``model.py``       what would be if: a pipeline fitted to what was measured
``verdict.py``     stalls by stage, the bottleneck, one line
``fixes.py``       what to do about it
``report.py``      what was found: rates, stages, stalls, fixes, the verdict
``figures.py``     its figures in words: what text and page share
``text.py``        it as text, for a terminal
``page.py``        it as an HTML page: ``report.html.jinja``, filled in
``timeline.py``    the page's timeline: rows, stretches, ticks
=================  ===========================================================
"""
