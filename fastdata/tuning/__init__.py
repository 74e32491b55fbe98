"""Which loader settings keep a training step busy, found by measurement.

=================  ===========================================================
``settings.py``    what is chosen: workers, their kind, how far ahead
``results.py``     rates with their intervals, trials, the result
``key.py``         what a result depends on
``describing.py``  transforms, code and data as plain values that can be compared
``store.py``       results in files
``kept.py``        what loaders and people do with them
=================  ===========================================================
"""
