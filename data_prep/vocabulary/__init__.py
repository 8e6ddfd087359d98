"""From tokens to ids: counting, choosing, encoding."""
