"""Which loader settings keep a training step busy, found by measurement.

=================  ===========================================================
``settings.py``    what is chosen: workers, their kind, how far ahead
``results.py``     rates with their intervals, trials, the result
=================  ===========================================================
"""
