"""The networks that come with ssmpi, a file each."""
