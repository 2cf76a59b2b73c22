"""Collects, merges, writes and shows importance matrices."""
