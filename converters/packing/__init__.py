"""The work of a pack, whatever the source's format.

``driver.pack`` checks its ``options`` and brings a source, ``workers`` and the
``packer`` together; ``chunk`` turns samples into encoded records in the workers,
``boxes`` moves boxes with their image; ``job`` is the unfinished pack
on the disk, with its ``lock``, and ``report`` describes what was packed.
"""
