"""TOML texts with positions, parses of broken texts, and edits that keep comments and layout."""
