"""Which loader settings keep a training step busy, found by measurement.

    tune_workers --> Tuner: demand, then supply of one Settings after another, then the choice
                       |
                     Runner  ~~ another process ~~  Subject: makes loaders, measures them

=================  ===========================================================
``settings.py``    what is chosen: workers, their kind, how far ahead
``results.py``     rates with their intervals, trials, the result
``tuner.py``       `tune_workers`: arguments, Ctrl-C, the verdict
``session.py``     what is measured when, within the time there is
``sweep.py``       which settings are tried (pure)
``choice.py``      which of them is chosen (pure)
``advice.py``      what would help where none is enough (pure)
``statistics.py``  medians and their intervals
``fitting.py``     memory that settings will take, and whether there is so much
``source.py``      loaders like a given one, with other settings
``subject.py``     what is measured, where it is measured
``measuring.py``   windows of batches and of steps
``runner.py``      the process that measures, seen from outside: its limits, its end
``runners.py``     where is measured: in that process, or in this one
``serving.py``     the same from inside
``page_cache.py``  whether files are in memory
``plot.py``        the curve, by matplotlib
``key.py``         what a result depends on
``describing.py``  transforms, code and data as plain values that can be compared
``store.py``       results in files
``kept.py``        what loaders and people do with them
=================  ===========================================================
"""
