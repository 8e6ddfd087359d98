"""``ssmpi bench throughput``: all contenders on one host, and the report."""
