"""Which loader settings keep a training step busy, found by measurement.

    tune_workers --> Session: demand, then supply of one Settings after another, then the run
                       |
                     Runner  ~~ another process ~~  Subject: makes loaders, measures them

The question and the answer

==================  ==========================================================
``settings.py``     what is chosen: workers, their kind, how far ahead
``results.py``      rates with their intervals, trials, the result
``tuner.py``        `tune_workers`: arguments, Ctrl-C
``outcome.py``      from what was measured to the result, and whether to keep it
``verdict.py``      whether the step is kept busy, in one line (pure)
``advice.py``       what would help where it is not (pure)
``plot.py``         the curve, by matplotlib
``progress.py``     the time left, on standard error
==================  ==========================================================

What is measured when

==================  ==========================================================
``session.py``      which settings are next, and which of them is chosen
``comparing.py``    supply: turns in random order, within the time and the memory
``stepping.py``     the step alone, and with a loader
``turns.py``        what was measured so far
``budget.py``       the time there is
``plan.py``         how long things will take (pure)
``sweep.py``        which settings are tried (pure)
``choice.py``       which of them is chosen (pure)
``statistics.py``   medians and their intervals (pure)
``fitting.py``      memory that settings will take, and what they cost (pure)
==================  ==========================================================

Where it is measured

====================  ========================================================
``runners.py``        in a process of its own, or in the caller's
``runner.py``         what a runner promises; the caller's process
``process.py``        that other process, seen from outside: requests and limits
``life.py``           its end, and that of all that it has started
``serving.py``        the same from inside
``subject.py``        what is measured there: loaders, the step, batches for it
``source.py``         where loaders come from: ``packed_source.py``, ``stock_source.py``
``scripts.py``        whether a target is a function of a script
``batches.py``        batches of any loader
``measuring.py``      windows of batches and of steps
``page_cache.py``     whether files are in memory
====================  ========================================================

What is kept

==================  ==========================================================
``key.py``          what a result depends on
``describing/``     transforms, code and data as plain values that can be compared
``store.py``        results in files
``kept.py``         which of them a loader uses
``listing.py``      those that people ask for, or have removed
==================  ==========================================================
"""
