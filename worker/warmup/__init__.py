"""Warm-up: a standby rehearses the user's own training step in the process that will train."""
