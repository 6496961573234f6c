"""What is looked at while a run is on, one module each. A watch says what is wrong; what follows, policy.py decides."""
