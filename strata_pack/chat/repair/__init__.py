"""Repairs chat templates and proves each repair."""
