"""What every command shares: options, output, masked streams, crash files."""
