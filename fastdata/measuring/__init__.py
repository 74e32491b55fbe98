"""The common parts of all that measures: tuning, profiling, and comparing training steps.

=================  ===============================================================
``workload.py``    the subject: data, step, device
``factories.py``   equivalent loaders with other settings
``loaders.py``     batches, epoch after epoch; making a loader like another
``images.py``      stored images, and transforms for a dataset without any
``downloads.py``   the part of a dataset that comes out of a store
``windows.py``     timed windows of batches and steps; medians with intervals
``turns.py``       the order of blocks in a process, and its number for each row
``statistics.py``  gains with intervals and verdicts, from one number per process
``noise.py``       rules for busy machines: the clock that judges, the end of trials
``cores.py``       the use of cores by other processes
``page_cache.py``  whether files are in memory
``stalls.py``      operations of a step that make a device wait
``lines.py``       lines of the user's code
=================  ===============================================================
"""
