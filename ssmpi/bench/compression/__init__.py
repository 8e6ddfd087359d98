"""What codecs cost and what they do to quality."""
