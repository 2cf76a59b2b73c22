"""Importance matrices: collected through llama.cpp on a calibration text, merged, written and looked at."""
