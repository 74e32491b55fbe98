"""Making batches, ahead of the loop that wants them.

    Request --BatchMaker.prepare--> Job: tasks --workers--> results --Job.finish--> batch
                    |                               |
                a slot of memory  <--- images ------'

      cores.py      how many cores this process may use
      memory.py     how much memory may still be taken
      job.py        the contracts between what is done and who does it
      buffers.py    memory of batches, which comes back by itself
      pinning.py    page-locking it for CUDA
      sharing.py    memory and messages that two processes share
      shared_folder.py  what is wrong with /dev/shm, which stock workers need
      layout.py     where the arrays of a batch lie in one slot
      tasks.py      what workers are told, and answer
      work.py       what workers do: BatchWork, the same in every thread and process
      rendering.py  from stored bytes to pixels in their places
      decoding.py   whole images, for who keeps them
      samples.py    samples one by one, for callables
      columns.py    the fields of a batch that are no images
      batches.py    BatchMaker: plans a batch, puts it together
      threads.py    workers that are threads; the worker that is the caller
      worker.py     what runs in a worker process
      starting.py   how worker processes are started
      signals.py    Ctrl-C and SIGTERM, held back while processes are forked
      deaths.py     what to say of a worker that died
      outcomes.py   what comes back from them: results, and errors as themselves
      processes.py  workers that are processes
      workers.py    which workers there are; what "auto" means
      stream.py     batches in order, some ahead, without regard to epochs
      backend.py    Backend: what all ways to make batches share
      cpu.py        CpuBackend: all of the above
      delivery.py   where a batch arrives: the device
      finishing.py  transforms of whole batches, there
      stats.py      what a loader has done so far
      packed.py     Loader: epochs, ranks, resuming, statistics
      epoch.py      one pass over a loader
      surface.py    what a loader shows to other libraries: a DataLoader's attributes
      stock.py      the tuned stock DataLoader, for torch datasets

A new kind of worker is another `Workers`, other memory another kind of block.
Neither touches what a batch is.  What makes batches in another way altogether is
another `Backend`; the loader knows no more of it than that.
"""
