"""Rollouts joined with the registry, and the routes that start and steer them."""
