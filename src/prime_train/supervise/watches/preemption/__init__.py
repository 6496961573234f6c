"""The watch for notices of a cloud that it takes the machine away."""
