"""Small stand-ins for the trainer: real processes that speak its events and write real checkpoint folders."""
