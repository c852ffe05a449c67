"""What to run, as data: one YAML file a speedrun, and the model that reads it."""
