"""The cost of codecs and the links for which they pay."""
