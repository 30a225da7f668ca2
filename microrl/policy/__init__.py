"""The policy: loading, log-probabilities, batching by tokens, the update."""
