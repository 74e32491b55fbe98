"""Write TFRecord files with TensorFlow's own writer, for tests/converters/test_tfrecord.py.

python -m venv /tmp/tf && /tmp/tf/bin/pip install tensorflow-cpu==2.21.0 pillow
/tmp/tf/bin/python scripts/format_fixtures/make_tfrecord.py tests/converters/fixtures/tfrecord
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf


def picture(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (6, 7, 3), np.uint8)


def bytes_of(*values: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def floats(*values: float) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def ints(*values: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("", "GZIP", "ZLIB"):
        path = folder / f"{kind.lower() or 'plain'}.tfrecord"
        with tf.io.TFRecordWriter(str(path), kind) as writer:
            for number in range(4):
                features = {
                    "image/encoded": bytes_of(tf.io.encode_png(picture(number)).numpy()),
                    "image/class/label": ints(number - 1),
                    "image/class/text": bytes_of(f"größe {number}".encode()),
                    "image/object/bbox/xmin": floats(*[0.25 * k for k in range(number)]),
                    "score": floats(number / 8),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
    with tf.io.TFRecordWriter(str(folder / "objects.record")) as writer:
        for number in range(4):
            # As dataset_tools/create_coco_tf_record.py does it: lists with an entry an object.
            kinds = [3, 1, 3][:number]
            features = {
                "image/height": ints(6),
                "image/width": ints(7),
                "image/filename": bytes_of(f"{number}.png".encode()),
                "image/encoded": bytes_of(tf.io.encode_png(picture(number)).numpy()),
                "image/format": bytes_of(b"png"),
                "image/object/bbox/xmin": floats(*[k / 8 for k in range(number)]),
                "image/object/bbox/xmax": floats(*[(k + 4) / 8 for k in range(number)]),
                "image/object/bbox/ymin": floats(*[0.25] * number),
                "image/object/bbox/ymax": floats(*[1.0] * number),
                "image/object/class/text": bytes_of(*[b"ant" if k == 1 else b"ox" for k in kinds]),
                "image/object/class/label": ints(*kinds),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    with tf.io.TFRecordWriter(str(folder / "flowers.tfrec")) as writer:
        for number in range(3):  # as "Petals to the Metal" on Kaggle has them
            features = {
                "id": bytes_of(f"{number:x}".encode()),
                "image": bytes_of(tf.io.encode_jpeg(picture(number)).numpy()),
                "class": ints(number * 30),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
