"""Formats of annotated images, and what they share.

=====================  ==========================================================
``annotated``          size and orientation: of which picture annotations are
``shapes``             objects in one form, and the fields and masks made of them
``regions``            polygons and run lengths painted, as ``pycocotools`` does
``safe_xml``           XML from files of strangers
``json_members``       large JSON objects, entry by entry
``class_colours``      tables of classes and their colours
``coco_*``             COCO, LVIS, panoptic files
``cvat_xml``           CVAT
``labelme_files``      labelme
``mask_*``             folders of images and masks; ``cityscapes`` has its names
``voc_*``              Pascal VOC, and its XML files beside images
``yolo_*``             YOLO
=====================  ==========================================================
"""
