"""What source formats share.

==================  ==========================================================
``locations``       files, folders and patterns
``spans``           pieces of files, and how nothing that a file claims is believed
``inflating``       files that are compressed as a whole
``scanned``         sources whose samples stand one behind the other
``inside``          files that data names, never outside of a folder
``fields``          what kind of field a value is
``labels``          names of classes from a file of the user's
``naming``          names of a format's own as names of fields
``extras``          packages that only some formats need
``shared``          objects that every worker has
``cells``           values as text
``table``, ``seen`` strings and keys in little memory
==================  ==========================================================

The packages here are families of formats: what a format in ``converters/`` needs beside its
own module.
"""
