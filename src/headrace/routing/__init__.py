"""Which endpoint answers: strategies, health, breakers, retries, rollouts and experiments."""
