"""What runs inside a job when a recipe trains with our own code. It knows nothing of the operator that submits it."""
