"""The monitor that resumes dead runs (docs/monitor.md). Tests kill a poll at every service that it asks for."""
