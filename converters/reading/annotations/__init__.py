"""Annotated images: the common parts of their formats.

====================  ===========================================================
``annotated``         size and orientation: of which picture annotations are
``regions``           polygons and run lengths painted, as ``pycocotools`` does
``masks``             masks of classes, and tables of their colours
``coco_annotations``  the content of COCO files
====================  ===========================================================
"""
