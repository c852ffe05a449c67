"""The backend Slurm: allocations as batch jobs, through the login service."""
