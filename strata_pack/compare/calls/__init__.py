"""Measures whether a model still calls tools: seeded tasks, replies without a grammar, judged by parser and schemas."""
