"""Where the time of training goes, and what a faster stage would gain.

    loader, step --rates--> three rates --------------------.
                 --packed, stock--> costs --model, trying--+--conclusion, fixes--> ProfileReport
                 --stalls--> lines of the step -------------|
                 --tracing--> timeline ---------------------'

==================  ==========================================================
``profiler.py``     `fastdata.profile`: everything, in order
``loaders.py``      facts about a loader and a batch
``batches.py``      batches of the loader; cached ones; what copying them takes
``rates.py``        steps with the real loader, a cached host batch, cached device batches
``downloads.py``    waits of the loop for images from a store
``tracing.py``      a timeline: what loop and workers do
``packed.py``       the stages of a loader of packed data
``stock.py``        the stages of a stock DataLoader
``recorder.py``     times by kind of work, also in libraries that others call
``lines.py``        the lines at which a stage spends its time
``model.py``        what stages cost, and how fast the pipeline would be if changed
``trying.py``       more workers, tried before they are advice
``fixes.py``        what to do about it
``conclusion.py``   from all that was measured to the report: stalls by stage, the verdict
``report.py``       the report: data, JSON, text
``page.py``         the report as an HTML page: ``report.html.jinja``, filled in
``figures.py``      its numbers as text
==================  ==========================================================
"""
