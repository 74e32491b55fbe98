"""Formats of annotated images, and their common parts.

=====================  ==========================================================
``annotated``          size and orientation: of which picture annotations are
``regions``            polygons and run lengths painted, as ``pycocotools`` does
``coco_*``             COCO and LVIS: its files, and its annotations
``masks``              masks of classes, and tables of their colours
=====================  ==========================================================

A module has a reader: what all images of a dataset share, and how a worker reads one
(`reading.image_list.SampleReader`).
"""
