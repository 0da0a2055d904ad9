"""Images as model inputs: decoding, geometry, scaling of values. Pillow is imported where it is used."""
