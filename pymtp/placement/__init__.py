"""What a model needs of each device, and what goes where: decided before anything is loaded."""
