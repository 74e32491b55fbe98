"""Image files loaded as they lie on disk, by the engine of packed data.

=========  ==================================================================
`listing`  from a location to the files that samples are made of, by a source format of
           `fastdata.converters`
`reading`  the files of a few samples: their bytes, sizes, and what is wrong with them
`dataset`  what ``fastdata.open`` returns of them
=========  ==================================================================

Samples, their order, their values and their pixels are those of a pack of the same files with
``codec="keep"``.  Only samples that such a pack rejects are there too, and are errors when they
are read.
"""
