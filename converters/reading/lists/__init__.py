"""Tables and lists that say what images are: their rows, the files that these name, their values.

``text_table`` reads rows of text, ``rows`` one row of it a sample, ``box_rows`` several rows an
image, ``image_finder`` finds the files, ``joined`` tables that share the images' numbers.
"""
