"""Values and formats that every layer uses. Imports nothing else of the project."""
