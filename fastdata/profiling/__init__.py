"""Where the time of training goes, and what would be gained by mending it.

    loader, step --rates--> three rates -----------.
                 --packed, stock--> stages --model-+--verdict, fixes--> ProfileReport
                 --stalls--> places in the step ---|
                 --tracing--> timeline ------------'

==================  ==========================================================
``profiler.py``     `fastdata.profile`: all of it, in order
``subject.py``      what is profiled, and on what
``source.py``       any loader as an endless source of batches
``batches.py``      batches that are kept: as they travel, as they arrive
``rates.py``        the real loader, a cached host batch, cached device batches
``windows.py``      some steps of one of these, in one go
``tracing.py``      a timeline: what loop and workers are at
``packed.py``       the stages of a loader of packed data
``recorded.py``     its data and transforms, as things that take times
``stock.py``        the stages of a stock DataLoader
``remade.py``       one made anew, whose batches bring times along
``hooks.py``        times of files, image libraries and transforms of datasets
``recorder.py``     a stop watch that knows what is being done
``lines.py``        a thread that looks where another one is
``where.py``        which line is the user's
``parts.py``        what measuring stages gives
``copying.py``      what bringing a batch to the device takes
``stalls.py``       what in a step makes a device wait
``modes.py``        torch's modes, which see every operation of a step
``warned.py``       what torch itself warns of
``places.py``       the places found, and whose lines they are
``costs.py``        what stages take, and who takes it
``model.py``        what would be if: a pipeline fitted to what was measured
``conclusion.py``   from what was measured to the report
``verdict.py``      stalls by stage, the bottleneck, one line
``facts.py``        which fixes apply to a loader
``fixes.py``        what to do about it
``report.py``       what was found: rates, stages, stalls, fixes, the verdict
``figures.py``      its figures in words: what text and page share
``text.py``         it as text, for a terminal
``page.py``         it as an HTML page: ``report.html.jinja``, filled in
``timeline.py``     the page's timeline: rows, stretches, ticks
==================  ==========================================================
"""
