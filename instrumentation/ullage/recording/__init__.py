"""What is recorded: buffers, contracts, inventory."""
