"""Raw Criteo text: reading, parsing, cutting into pieces, scanning, writing."""
