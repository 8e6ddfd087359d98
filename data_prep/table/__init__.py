"""Tables of any shape: their schema, and formats of text and Parquet that read their rows."""
