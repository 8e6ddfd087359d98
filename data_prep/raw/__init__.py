"""Raw files: which ones there are, their text and its pieces, and the parser of Criteo's rows."""
