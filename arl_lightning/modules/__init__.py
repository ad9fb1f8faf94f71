"""What has parameters or turns rows into a loss."""
