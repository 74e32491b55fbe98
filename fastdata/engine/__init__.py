"""Making batches, ahead of the training loop that takes them.

    Request --BatchMaker.prepare--> Job: tasks --workers--> results --Job.finish--> batch
                    |                               |
                a slot of memory  <--- images ------'

    What a loader is:
      loader.py           Loader: epochs, ranks, resuming, statistics
      epoch.py            its passes: its position, its iterators and their streams
      surface.py          the attributes of a DataLoader, for other libraries
    What makes batches:
      backend.py          Backend: everything between a request and a finished batch; CpuBackend
      stream.py           batches in order, some made ahead, without regard to epochs
      delivery.py         batches on their way to a device; transforms of whole batches
    What a batch is, from below:
      buffers.py          memory of batches, which is used again; where arrays lie in it
      contracts.py        packed data, requests, jobs and workers
      work.py             BatchWork: data, transforms and decoder, for tasks to be carried out with
      image_lists.py      where the images of a batch lie in memory if they differ in size
      rendering.py        BatchPlan, RenderTask: from stored bytes to pixels in their batch
      samples.py          SampleTask: samples one by one, through callables
      batches.py          BatchMaker: plans a batch, and puts it together
    What does the work:
      workers.py          the caller, threads or processes; what "auto" means

A new kind of worker is another `Workers`, other memory another kind of block: neither
changes what a batch is.  What makes batches in another way altogether is another `Backend`.
"""
