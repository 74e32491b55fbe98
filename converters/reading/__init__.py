"""What source formats share.

===================  =========================================================
where the data is
``locations``        files, folders and patterns; files that data names, never outside of these
``list_signs``       what a file beside images is: a list, prose, or something else
``picture_pairs``    whether pictures of several folders belong together
``zip_archive``      the members of a zip archive
``splits``           splits in the names of files
``image_files``      which files are images, by name and by first bytes
``text_lines``       lines of lists beside a dataset
``json_files``       JSON: small files, and large ones entry by entry

how it is read
``spans``            pieces of files, and how nothing that a file claims is believed
``deferred``         values and records that workers read
``compression``      files that are compressed as a whole
``forward_reader``   pieces of what is compressed, from the front to the end
``fingerprints``     what samples are made from, for resuming

what becomes a field
``selection``        ``FIELD=NAME``: the options by which users choose
``options``          options of formats, each declared once
``field_names``      names of fields, and what images, labels and masks are usually called
``fields``           what kind of field a value is
``class_names``      names of classes: ``classes=``, and labels of text
``cells``            values as text, and what type a column of text has
``python_samples``   what Python's iterables and Datasets yield
``exported``         what fastdata's exports say of their fields
``npy``              NumPy's files
``protobuf``         messages that are described at run time

other
``refusals``         errors of situations that many formats meet, packages that are not installed
``shared``           objects that every worker has
``small_memory``     strings and keys in little memory
===================  =========================================================

The packages here are families of formats: what a format in ``converters/`` needs beside its
own module.
"""
