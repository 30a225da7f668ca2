"""The policy: log-probabilities, batching by tokens, the update."""
