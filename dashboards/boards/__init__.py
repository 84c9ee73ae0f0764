"""The dashboards, one module each, and what they are made of."""
