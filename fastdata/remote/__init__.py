"""Datasets in object stores, read as if they were on this machine.

Files of the length of the shards lie in a cache folder.  What is not needed yet, or no more, is a
hole in them; readers map them as any shard, and first ask that the images they want are there.

``folder.py``      the cache folder, and the datasets in it
``extents.py``     where the images of a shard are in its file, and what may become a hole
``dataset.py``     a dataset in the folder: fetching and removing images
``schedule.py``    when each block is needed, by the order of the loaders that are running
``held.py``        which blocks of a dataset that is being read are there, and which on their way
``room.py``        what the cache may take, and what goes for what comes
``downloader.py``  the one process of a machine that uses the network, for all that read
``messages.py``    what it is told, and tells
``client.py``      the connection to it
``supply.py``      what readers ask for images
``verifying.py``   whether what is in the folder is what was fetched
``following.py``   tells the downloader the order of a loader's batches

It is safe for any number of processes.  `Supply` says how readers find out that images have been
removed while they were reading them.
"""

from fastdata.remote.folder import CacheFolder, default_cache_folder
from fastdata.remote.supply import Supply, open_remote

__all__ = ["CacheFolder", "Supply", "default_cache_folder", "open_remote"]
