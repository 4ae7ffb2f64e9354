"""What is captured while a case runs."""
