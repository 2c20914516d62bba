"""Files of weights that others wrote, read tensor by tensor."""
