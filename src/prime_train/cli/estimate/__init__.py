"""`prime-train estimate`, and the inputs that `find` shares."""
