"""Model files: reading with bounds, writing whole or not at all, weights that stay where they are."""
