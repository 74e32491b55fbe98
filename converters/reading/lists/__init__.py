"""Tables and lists that say what images are: their rows, the files that these name, their values.

====================  ========================================================
``text_table``        rows of cells: CSV, TSV, blanks, JSON Lines, a JSON list
``blank_lines``       lines whose columns are set apart by blanks
``list_files``        the list that lies beside images
``list_options``      what a list's options say of its columns
``roles``             what columns are for, by their usual names
``image_finder``      the files that cells name
``row_samples``       a row is a sample
``flag_columns``      columns of 1 and 0 as labels
``split_names``       a column of splits
``box_roles``         which columns are boxes
``box_rows``          a row is a box, and a sample an image
``boxed_image``       boxes of any form in pixels
``object_cells``      boxes in a cell
``metadata_files``    metadata of Hugging Face's ImageFolder
``joined``            tables that share their keys
``synset_source``     what layouts of ImageNet share
====================  ========================================================
"""
