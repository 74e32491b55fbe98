"""Making batches, ahead of the training loop that takes them.

    Request --BatchMaker.prepare--> Job: tasks --workers--> results --Job.finish--> batch
                    |                               |
                a slot of memory  <--- images ------'

    What a loader is:
      loader.py           Loader: epochs, ranks, resuming, statistics
      epoch.py            its passes: where it stands, its iterators and their streams
      surface.py          the attributes of a DataLoader, for other libraries
    What makes batches:
      backend.py          Backend: everything between a request and a finished batch
      cpu.py              the one that needs nothing else
      stream.py           batches in order, some made ahead, without regard to epochs
      delivery.py         to the device;  finishing.py: transforms of whole batches
    What a batch is, from below:
      buffers.py          memory of batches, which is used again; where arrays lie in it
      tasks.py            what workers do and answer; the contract of packed data
      context.py          BatchContext: data, transforms and decoder
      rendering.py        from stored bytes to pixels in their places
      samples.py          samples one by one, and whole images
      work.py             BatchWork: the context, and which task is done by what
      job.py              requests, and the contracts between batches and workers
      batches.py          BatchMaker: plans a batch, and puts it together
    What does the work:
      workers.py          the caller or threads; what "auto" means
      process_workers.py  processes (fastdata.processes)
      memory.py           how much memory this process may use

A new kind of worker is another `Workers`, other memory another kind of block: neither
changes what a batch is.  What makes batches in another way altogether is another `Backend`.
"""
