"""``ssmpi bench throughput``: everybody who is measured on one host, and the report."""
