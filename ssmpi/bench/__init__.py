"""``ssmpi bench``: how fast this program is beside what it could be and what others are (start at ``throughput``), and
what runs over a grid of settings come to (start at ``study``).
"""
