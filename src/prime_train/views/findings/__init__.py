"""What is shown of findings and diagnoses."""
