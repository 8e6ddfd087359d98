"""Found before the real one: see ``ranks.WITHOUT_EXTRAS``."""

raise ImportError("hidden from this process")
