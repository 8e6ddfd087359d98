"""``ssmpi bench``: how fast this program is, beside what it could be and what others are. Start at ``throughput``."""
