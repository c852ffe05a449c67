"""The Speedrun operator: `Speedrun` resources become Slurm jobs; phase, val_loss and train_time come back as status."""

__version__ = "0.1.0"
