"""What is known of the machine."""
