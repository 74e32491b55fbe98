"""Tables and lists that say what images are: their rows, the files that these name, their values.

====================  ========================================================
``list_files``        the list of a folder of images, or one in each split folder
``text_table``        rows of cells: CSV, TSV, blanks, JSON Lines, a JSON list
``columns``           what columns are for, by their names, and what type they have
``list_table``        the tables of split folders as one; columns that are classes
``image_finder``      the files that cells name
``row_samples``       a row is a sample, with one label or several
``box_rows``          a row is a box, and a sample an image
====================  ========================================================
"""
