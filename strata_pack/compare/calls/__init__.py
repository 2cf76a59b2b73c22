"""Measures how well a model calls tools: seeded tasks, replies without a grammar, checked by parser and schemas."""
