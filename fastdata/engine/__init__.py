"""Making batches, ahead of the loop that wants them.

    Request  --BatchMaker.prepare-->  Job: pieces, finish()  --ThreadRun-->  batches, in order

      cores.py      how many cores this process may use
      job.py        the contract between what is done and who does it
      batches.py    BatchMaker: plans a batch, cuts it into pieces, puts it together
      buffers.py    memory of batches
      threads.py    runs jobs on a thread pool, some batches ahead; or in the caller
      packed.py     Loader: epochs, resuming, statistics
      stock.py      the tuned stock DataLoader, for torch datasets

A new kind of worker is another way to run jobs, other memory another pool of
buffers.  Neither touches what a batch is.
"""
