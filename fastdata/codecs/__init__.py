"""Images to bytes and back: headers, decoding, resizing, encoding."""
