"""Environments: classes whose methods are a model's tools, run in processes of their own."""
