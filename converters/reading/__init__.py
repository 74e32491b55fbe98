"""What source formats share.

===================  =========================================================
where the data is
``locations``        files, folders and patterns
``safe_paths``       files that data names, never outside of a folder
``splits``           splits in the names of files
``image_files``      which files are images, by name and by first bytes
``listed_images``    lists of images, which somebody made elsewhere
``text_lines``       lines of lists beside a dataset
``json_files``       small JSON files that describe a dataset

how it is read
``spans``            pieces of files, and how nothing that a file claims is believed
``deferred``         values and records that workers read
``compression``      files that are compressed as a whole
``forward_reader``   pieces of what is compressed, from the front to the end
``image_list``       sources of image files, with what belongs to each
``scanned``          sources whose samples stand one behind the other
``fingerprints``     what samples are made from, for resuming

what becomes a field
``selection``        ``FIELD=NAME``: the options by which users choose
``usual_names``      what images, labels and masks are called where they do not
``field_names``      names of a format's own as names of fields
``fields``           what kind of field a value is
``class_names``      names of classes: ``classes=``, and labels of text
``cell_types``       what type a column of text has
``cells``            values as text
``python_samples``   what Python's iterables and Datasets yield
``npy``              NumPy's files
``protobuf``         messages that are described at run time

other
``refusals``         errors of situations that many formats meet
``extras``           packages that only some formats need
``shared``           objects that every worker has
``string_table``     strings in little memory
``key_set``          keys in little memory
===================  =========================================================

The packages here are families of formats: what a format in ``converters/`` needs beside its
own module.
"""
