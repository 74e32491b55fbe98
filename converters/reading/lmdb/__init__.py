"""LMDB files of others, read without LMDB: Caffe's, and key -> image file."""
