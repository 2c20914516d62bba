"""The state of parameters, between torch's face and the compiled optimizer."""
