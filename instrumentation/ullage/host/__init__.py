"""The process that ullage runs in: its sessions and segments, what it says of itself, how it ends."""
