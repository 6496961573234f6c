"""Shows configs to people and programs: their values, and what differs between two. Secrets are masked."""
