"""JSON Schemas to GBNF grammars for llama.cpp."""
