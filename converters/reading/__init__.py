"""Helpers that several source formats share.

===================  =========================================================
the files
``locations``        files, folders and patterns
``mirror``           a store as a folder of placeholders
``image_files``      image files, by name and by first bytes
``named_files``      files by their names in two forms of accents
``splits``           splits in the names of files and folders
``file_sets``        missing files of numbered sets
``list_signs``       lists, prose and other files next to images
``picture_pairs``    folders whose pictures form pairs
``zip_archive``      the members of a zip archive
``text_lines``       lines of lists next to a dataset
``json_files``       JSON: small files, and large ones entry by entry

reading
``spans``            pieces of files, without trust in the sizes that a file claims
``deferred``         values that workers read
``compression``      files that are compressed as a whole
``forward_reader``   pieces of compressed files, from the front to the end
``pickles``          pickles, without executing them
``npy``              NumPy's files
``fingerprints``     hashes of the source, for resuming

fields
``selection``        ``FIELD=NAME``: the options for choosing parts of a source
``column_choice``    columns that become fields
``options``          options of formats, each declared once
``field_names``      names of fields, and the usual names of images, labels and masks
``fields``           the kind of field of a value
``box_forms``        boxes in other forms than corners in pixels
``class_names``      names of classes: ``classes=``, and labels of text
``cells``            values as text, and the types of text columns
``python_data``      datasets of other Python libraries
``python_samples``   samples of Python's iterables and Datasets
``exported``         the description of fields in fastdata's exports

other
``refusals``         errors that many formats raise, and missing packages
``shared``           samples that each worker loads by a callable of its own
``small_memory``     strings and keys in little memory
===================  =========================================================

Each package here is for a family of formats.
"""
