"""Formats of annotated images: COCO and Pascal VOC, and what MVTec AD shares with them."""
