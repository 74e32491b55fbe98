"""Which loader settings keep a training step busy, found by measurement.

    tune_workers --> Session: demand, then supply of one Settings after another, then training
                       |
                     Runner  ~~ another process ~~  Workload: makes loaders, measures them

`fastdata.measuring` has loaders and windows.  `fastdata.tuned_settings` stores the result, and
loaders look it up there.

===============  ==============================================================
``tuner.py``     `tune_workers`: arguments, Ctrl-C, the result, storing it
``session.py``   the order of measurements, and the choice of settings to measure
``trials.py``    supply and runs of the step, in random turns within time and memory
``runner.py``    calls of a workload in another process, which may die or hang
``streams.py``   the number of requests at once to a store
``fetching.py``  how fast blocks come out of a store
``budget.py``    available time and memory, and the needs of settings (pure)
``choice.py``    the choice among settings (pure)
``report.py``    the result, as JSON and back; verdict, advice, text
``picture.py``   the result as a picture
``listing.py``   lists and removes stored results
===============  ==============================================================
"""
