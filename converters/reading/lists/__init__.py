"""Tables and lists that say what images are: their rows, the files that these name, their values.

====================  ========================================================
``list_files``        the list or the metadata that lies beside images
``text_table``        rows of cells: CSV, TSV, blanks, JSON Lines, a JSON list
``columns``           what columns are for, by their names or by options
``rows``              rows of one split, flags as labels, lists of two columns
``image_finder``      the files that cells name
``row_samples``       a row is a sample
``box_rows``          a row is a box, and a sample an image; boxes in a cell
``boxed_image``       boxes of any form in pixels
====================  ========================================================
"""
