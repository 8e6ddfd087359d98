"""Raw Criteo text: reading, parsing, splitting into pieces."""
