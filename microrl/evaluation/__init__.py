"""Evaluation: estimators, and the sampling around them."""
