"""The monitor that resumes dead runs."""
