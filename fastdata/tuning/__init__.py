"""Which loader settings keep a training step busy, found by measurement.

    tune_workers --> Session: demand, then supply of one Settings after another, then training
                       |
                     Runner  ~~ another process ~~  Workload: makes loaders, measures them

Loaders, windows and trials are `fastdata.measuring`'s; `fastdata.tuned_settings` stores
the result, and loaders look it up there.

===============  ==============================================================
``tuner.py``     `tune_workers`: arguments, Ctrl-C, the result, storing it
``session.py``   the order of measurements: settings that are tried, and the choice
``trials.py``    supply, in turns in random order, and runs of the step, as time and memory allow
``streams.py``   numbers of requests at once to a store, for what is not in the cache yet
``fetching.py``  how fast blocks come out of a store
``budget.py``    the time and memory there is, and what settings take (pure)
``choice.py``    the choice among them (pure)
``report.py``    the result, as JSON and back; verdict, advice, text
``picture.py``   the result as a picture
``listing.py``   lists and removes stored results
===============  ==============================================================
"""
