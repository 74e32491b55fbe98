"""Annotated images: the common parts of their formats.

====================  ===========================================================
``annotated``         which picture annotations are of, and regions that are painted
``masks``             masks of classes, and tables of their colours
``coco_annotations``  the content of COCO files
====================  ===========================================================
"""
