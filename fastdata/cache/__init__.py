"""Datasets that stay in memory.

cache="device": decoded images where batches are wanted, a GPU's memory mostly.

    requests --> filling: what is not there yet, decoded whole by the usual workers
        |                                     |
        v                                     v
    DeviceCache.batch: plan - gather - resize - pixels  <--  ImageStore

cache="ram": packed bytes in host memory, page-locked where there is CUDA.

    files --one thread, once--> copies --> the usual workers, instead of the files

    Of files that are not packed each is put there by the worker that needs it first.

      ram.py       RamCacheBackend
      files.py     FileCacheBackend: the same for files that are not packed
      copies.py    FileCopy: a file's bytes in memory that all processes share
      backend.py   DeviceCacheBackend: its stream fills, then does without workers
      filling.py   whole images of a batch, one after another in one slot of memory
      device.py    DeviceCache: what is held, and batches made of it
      store.py     the images of one field
"""
