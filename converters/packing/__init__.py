"""The work of a pack, whatever the source's format.

``driver.pack`` checks its ``options`` and brings a source, ``workers`` and the
``packer`` together; ``chunk`` turns samples into encoded records in the workers,
``sizes`` says how large an image becomes, ``boxes`` moves boxes with it; ``job``
describes the files of an unfinished pack, ``parts`` a ``plan`` of shards that any
machine packs, which ``engines`` run, and ``report`` what was packed; ``remarks`` counts
what decoders say of images.
"""
