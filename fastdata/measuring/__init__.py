"""What all that measures loading has in common: tuning, profiling, and comparing training steps.

    script, loader or dataset --> Workload --> LoaderFactory --> loaders with given Settings
                                          \\--> windows of batches and steps --> Rate
    Workload ~~ in a process of its own ~~ trials

=================  ==================================================================
``workload.py``    what is measured: data, step, device; what they are in words
``loaders.py``     what is known of a loader; its batches, epoch after epoch; making one like it
``factories.py``   equivalent loaders with other settings
``crops.py``       transforms for a dataset that comes without any
``windows.py``     timed windows of batches and steps; medians with intervals
``turns.py``       the order of blocks in a process, and its number for each row
``statistics.py``  gains with intervals and verdicts, from one number per process
``noise.py``       rules for busy machines: which clock judges, when trials end
``trials.py``      calls in a process that may die, hang or take all memory
``cores.py``       what other processes take of the cores
``page_cache.py``  whether files are in memory
``downloads.py``   what comes out of a store: what a loop waits for, and how fast it is
=================  ==================================================================
"""
